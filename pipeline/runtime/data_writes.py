"""Count writes to tensors through ``.data``, which torch does not count: PEFT merges adapters so.

An alias that ``.data`` gives has a count of its own, which ends with it. Once a tensor is watched,
``torch.Tensor.data`` is a descriptor of ours: it calls torch's, and gives aliases of one count for watched tensors.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from attrs import define
from torch.utils.weak import WeakTensorKeyDictionary

_own: Final[Any] = torch._C.TensorBase.data


@define(eq=False)
class DataWrites:
    """What is known of the writes to a tensor through ``.data``: how often it was assigned, and the alias that counts
    writes in place."""

    assigned: int = 0
    alias: torch.Tensor | None = None

    @property
    def count(self) -> tuple[int, int]:
        """Another value after each write."""
        return self.assigned, 0 if self.alias is None else self.alias._version


_watched: Final[Any] = WeakTensorKeyDictionary()


def watch(tensor: torch.Tensor) -> DataWrites:
    """Count the writes to a tensor through ``.data`` from now on."""
    if not isinstance(vars(torch.Tensor).get("data"), _Data):
        torch.Tensor.data = _Data()  # type: ignore[assignment]
    found: DataWrites = _watched.setdefault(tensor, DataWrites())
    return found


class _Data:
    """The attribute ``data`` of tensors."""

    def __get__(self, tensor: torch.Tensor | None, kind: type | None = None) -> Any:
        if tensor is None:
            return _own
        data = _own.__get__(tensor, kind)
        writes = _watched.get(tensor)
        if writes is None:
            return data
        if data.is_inference():  # it counts no writes
            writes.assigned += 1
            return data
        if writes.alias is None or not _is_alias(writes.alias, data):
            writes.assigned += writes.alias is not None  # what an older alias counted is not lost
            writes.alias = data
        return writes.alias.detach()

    def __set__(self, tensor: torch.Tensor, value: Any) -> None:
        _own.__set__(tensor, value)
        writes = _watched.get(tensor)
        if writes is not None:
            writes.assigned, writes.alias = writes.assigned + 1, None


def _is_alias(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same elements of the same memory."""
    same = one.data_ptr() == other.data_ptr() and one.dtype == other.dtype
    return same and one.shape == other.shape and one.stride() == other.stride()
