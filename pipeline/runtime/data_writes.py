"""Count writes to tensors through ``.data``, which torch does not count: PEFT merges adapters so.

A compiled graph of torch.compile compares its weights with those of the call before each call, in a few microseconds,
so it cannot read their values. torch's count of writes, and the address, show all but ``weight.data.add_(…)``: an alias
that ``.data`` gives has a count of its own, which ends with it. Nothing but the access itself is left to be seen. So
while a graph lives that watches a tensor, ``torch.Tensor.data`` is a descriptor of ours, which calls torch's and gives
aliases of one count for watched tensors. It goes with the last such graph.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Final

import torch
from attrs import define
from torch.utils.weak import WeakTensorKeyDictionary

_own: Final[Any] = torch._C.TensorBase.data


@define(eq=False)
class DataWrites:
    """What is known of the writes to a tensor through ``.data``: how often it was assigned, and the alias that counts
    writes in place. The tensor is watched while this lives."""

    assigned: int = 0
    alias: torch.Tensor | None = None

    @property
    def count(self) -> tuple[int, int]:
        """Another value after each write."""
        return self.assigned, 0 if self.alias is None else self.alias._version


_watched: Final[Any] = WeakTensorKeyDictionary()
_living: Final[weakref.WeakSet[DataWrites]] = weakref.WeakSet()
_lock: Final = threading.RLock()


def watch(tensor: torch.Tensor) -> DataWrites:
    """Count the writes to a tensor through ``.data`` while what this returns lives."""
    with _lock:
        found = _writes_of(tensor)
        if found is None:
            found = DataWrites()
            _living.add(found)  # first: collecting garbage may end the last of the others at any step
            weakref.finalize(found, _ended).atexit = False
            _watched[tensor] = weakref.ref(found)
        if not isinstance(vars(torch.Tensor).get("data"), _Data):
            torch.Tensor.data = _Data()  # type: ignore[assignment]
        return found


def _ended() -> None:
    """Give torch its own attribute back if nothing is watched any more."""
    with _lock:
        is_last = next(iter(_living), None) is None  # its length may count one that is dead
        if is_last and isinstance(vars(torch.Tensor).get("data"), _Data):
            del torch.Tensor.data


def _writes_of(tensor: torch.Tensor) -> DataWrites | None:
    found = _watched.get(tensor)
    writes: DataWrites | None = None if found is None else found()
    return writes


class _Data:
    """The attribute ``data`` of tensors."""

    def __get__(self, tensor: torch.Tensor | None, kind: type | None = None) -> Any:
        if tensor is None:
            return _own
        data = _own.__get__(tensor, kind)
        writes = _writes_of(tensor)
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
        writes = _writes_of(tensor)
        if writes is not None:
            writes.assigned, writes.alias = writes.assigned + 1, None


def _is_alias(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same elements of the same memory."""
    same = one.data_ptr() == other.data_ptr() and one.dtype == other.dtype
    return same and one.shape == other.shape and one.stride() == other.stride()
