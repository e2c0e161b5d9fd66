"""Count writes to tensors through ``.data``, such as PEFT's merges of adapters; torch's version counter misses them.

Before each call a torch.compile graph checks in a few microseconds whether its weights have changed, so it cannot
compare values. torch's version counter and the address reveal every write except ``weight.data.add_(…)``: the alias
that ``.data`` returns has a separate counter, which is lost when the alias is freed. So while a graph watches tensors,
a descriptor replaces ``torch.Tensor.data``: it calls torch's own and returns aliases with one shared counter per
watched tensor. torch's own descriptor is restored when the last watching graph is gone.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Final

import torch
from attrs import define
from torch.utils.weak import WeakTensorKeyDictionary

_own: Final[Any] = torch.Tensor.data


@define(eq=False)
class DataWrites:
    """A count of the writes to a tensor through its attribute ``.data``; counting stops when this object is freed.

    assigned: the number of assignments to ``.data``. alias: the tensor that ``.data`` returned; its version counter
        counts the in-place writes.
    """

    assigned: int = 0
    alias: torch.Tensor | None = None

    @property
    def count(self) -> tuple[int, int]:
        """The number of writes so far, as a pair that changes with each write."""
        return self.assigned, 0 if self.alias is None else self.alias._version


_watched: Final[Any] = WeakTensorKeyDictionary()
_living: Final[weakref.WeakSet[DataWrites]] = weakref.WeakSet()
_lock: Final = threading.RLock()


def watch_data_writes(tensor: torch.Tensor) -> DataWrites:
    """Count the writes to a tensor through ``.data`` while the returned object lives."""
    with _lock:
        found = _find_data_writes(tensor)
        if found is None:
            found = DataWrites()
            _living.add(found)  # first: garbage collection may finalize the last of the others at any step
            weakref.finalize(found, _stop_watching).atexit = False
            _watched[tensor] = weakref.ref(found)
        if not isinstance(vars(torch.Tensor).get("data"), _DataDescriptor):
            torch.Tensor.data = _DataDescriptor()  # type: ignore[assignment]
        return found


def _stop_watching() -> None:
    """Restore torch's own ``data`` attribute if no tensor is watched any more."""
    with _lock:
        is_last = next(iter(_living), None) is None  # len() may count a dead one
        if is_last and isinstance(vars(torch.Tensor).get("data"), _DataDescriptor):
            del torch.Tensor.data


def _find_data_writes(tensor: torch.Tensor) -> DataWrites | None:
    """Return the count of the writes to a tensor through ``.data``; None if `watch_data_writes` does not watch it."""
    found = _watched.get(tensor)
    writes: DataWrites | None = None if found is None else found()
    return writes


class _DataDescriptor:
    """A descriptor in place of ``torch.Tensor.data`` while `watch_data_writes` watches any tensor. For a watched tensor
    it counts assignments, and returns aliases that share a version counter; for others it does what torch's does."""

    def __get__(self, tensor: torch.Tensor | None, kind: type | None = None) -> Any:
        if tensor is None:
            return _own
        data = _own.__get__(tensor, kind)
        writes = _find_data_writes(tensor)
        if writes is None:
            return data
        if data.is_inference():  # inference tensors have no version counter
            writes.assigned += 1
            return data
        if writes.alias is None or not _is_alias(writes.alias, data):
            writes.assigned += writes.alias is not None  # keep the writes that an older alias counted
            writes.alias = data
        return writes.alias.detach()

    def __set__(self, tensor: torch.Tensor, value: Any) -> None:
        _own.__set__(tensor, value)
        writes = _find_data_writes(tensor)
        if writes is not None:
            writes.assigned, writes.alias = writes.assigned + 1, None


def _is_alias(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = one.data_ptr() == other.data_ptr() and one.dtype == other.dtype
    return same and one.shape == other.shape and one.stride() == other.stride()
