"""Read and write at indices of rank 0: ``cache[:, i] = cache[:, j] + x``.

torch.export takes such an index for a number, which only a call has, and fails: to write, and before torch 2.13 to
read. Here the model writes at an index of one element, and reads at a symbol, as torch 2.13 does.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pipeline.aten.types import Argument, Target
from pipeline.export_fixes.patching import VERSION

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def writing(override: Callable[..., object]) -> Callable[..., object]:
    """Wrap torch.export's handling of a call in the model: writes by indices of rank 0 whose numbers only data has."""

    def override_writes(self: Argument, func: Target, args: Argument, kwargs: Argument) -> object:
        if getattr(func, "__name__", "") == "__setitem__" and isinstance(args[0], torch.Tensor):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(map(_is_position, index)) and all(_is_position(each) or _is_basic(each) for each in index):
                return _write, (args[0], index, args[2]), {}
        return override(self, func, args, kwargs)

    return override_writes


def reading(override: Callable[..., object]) -> Callable[..., object]:
    """Wrap torch.export's handling of a call in the model: reads at indices of rank 0 are reads at symbols."""
    if VERSION >= (2, 13):
        return override

    def override_reads(self: Argument, func: Target, args: Argument, kwargs: Argument) -> object:
        if getattr(func, "__name__", "") == "__getitem__" and isinstance(args[0], torch.Tensor):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(map(_is_position, index)) and all(_is_position(each) or _is_basic(each) for each in index):
                args = args[0], tuple(map(_symbol, index))
        return override(self, func, args, kwargs)

    return override_reads


def _symbol(index: Argument) -> Argument:
    """Return a position as a symbol, also as an end of a slice."""
    if isinstance(index, slice):
        return slice(*map(_symbol, (index.start, index.stop, index.step)))
    return index.item() if _is_position(index) else index


def _is_position(index: object) -> bool:
    """Return whether an index is a 0-d tensor whose value depends on data, even if it was read before."""
    if not isinstance(index, FakeTensor) or index.dim() or index.dtype not in INTEGERS or index.constant is not None:
        return False
    number = index.item_memo
    return number is None or bool(free_unbacked_symbols(number))


def _is_basic(index: object) -> bool:
    """Return whether an index yields a view: it has no tensor, list or bool."""
    return index is None or index is Ellipsis or isinstance(index, slice | torch.SymInt) or type(index) is int


def _write(tensor: torch.Tensor, index: tuple[Argument, ...], value: Argument) -> None:
    """Write to a view in which the dims of the positions come first."""
    view = tensor[tuple(slice(None) if _is_position(each) else each for each in index)]
    dims = _indexed_dims(index, tensor.dim())
    first = view.movedim(dims, tuple(range(len(dims))))
    first[tuple(each.reshape(1) for each in index if _is_position(each))] = value


def _indexed_dims(index: tuple[Argument, ...], rank: int) -> tuple[int, ...]:
    """Return the dims of the view that the positions index."""
    found, dim = list[int](), 0
    read = sum(each is not None and each is not Ellipsis for each in index)
    for each in index:
        if _is_position(each):
            found.append(dim)
        if each is Ellipsis:
            dim += rank - read
        elif each is None or isinstance(each, slice | torch.Tensor):
            dim += 1
    return tuple(found)
