"""Convert topk, sort, and the indices of extrema. Decompose searches in sorted tensors, and order statistics."""

from __future__ import annotations

import math
from functools import partial
from typing import Final

import torch
from torch import Tensor

from pipeline.aten.types import Argument, aten
from pipeline.converters.binding import CompilationSettings, Rejection, argument, converts
from pipeline.converters.decompositions import register_torch_trt_decomposition
from pipeline.impl import sort as _sort
from pipeline.impl.base import ITensor, Net, Value
from pipeline.impl.reduce import LONGEST
from pipeline.shapes.environment import upper_bound


def check_k(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The argument k must be at most 3840, the maximum of TensorRT's TopK layer."""
    k = argument(node, "k")
    size = k.meta["val"] if isinstance(k, torch.fx.Node) else k
    return upper_bound(size) <= _sort.MAX_K or Rejection(f"k is {k}; TensorRT supports at most {_sort.MAX_K}")


def check_length(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """At most 3840 elements can be sorted, the maximum of TensorRT's TopK."""
    self, dim = argument(node, "self").meta["val"], argument(node, "dim")
    length = self.shape[dim] if self.dim() else 1
    if upper_bound(length) <= _sort.MAX_K:
        return True
    return Rejection(f"dim {dim} has up to {length} elements; TensorRT sorts at most {_sort.MAX_K}")


@converts(aten.topk.default, validator=check_k)
def topk(net: Net, input: Value, k: int, dim: int, largest: bool) -> tuple[ITensor | None, ...]:
    """topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor, Tensor)"""
    return _sort.topk(net, input, k, dim, largest)


@converts(aten.sort.default, aten.sort.stable, validator=check_length)
def sort(net: Net, input: Value, dim: int, descending: bool, stable: bool | None = False) -> tuple[ITensor, ITensor]:
    """sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor, Tensor)"""
    return _sort.sort(net, input, dim, descending, bool(stable))


@converts({aten.max.dim: True, aten.min.dim: False})
def max_or_min_with_index(net: Net, largest: bool, input: Value, dim: int, keepdim: bool) -> tuple[ITensor, ITensor]:
    """max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices); also min.dim"""
    return _sort.extremum(net, largest, input, dim, keepdim)


@converts({aten.argmax.default: True, aten.argmin.default: False})
def argmax_or_argmin(net: Net, largest: bool, input: Value, dim: int | None, keepdim: bool) -> ITensor:
    """argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor; argmin if ``largest`` is False"""
    return _sort.index_of_extremum(net, largest, input, dim, keepdim)


COMPARED: Final = 64
"""The maximum length of a sorted sequence for which all elements are compared; longer static ones are bisected."""


@register_torch_trt_decomposition(aten.searchsorted.Tensor)
@register_torch_trt_decomposition(aten.searchsorted.Scalar)
def searchsorted(
    sorted_sequence: Tensor,
    self: Argument,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    self = self if isinstance(self, Tensor) else sorted_sequence.new_full((), self)
    ascending = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter)
    right, length = right or side == "right", ascending.shape[-1]
    if ascending.is_floating_point():
        found = _binary_search_like_eager(ascending, self, right)
    elif isinstance(length, int) and length > COMPARED:
        found = _binary_search(ascending, self, right)
    else:
        rows = ascending.unsqueeze(-2) if ascending.dim() > 1 else ascending
        found = _is_before(rows, self.unsqueeze(-1), right).sum(-1)
    return found.to(torch.int32) if out_int32 else found


def _is_before(ascending: Tensor, searched: Tensor, right: bool) -> Tensor:
    """Return whether each element is below (``right``: or equals) the searched value; True if either is NaN."""
    return torch.logical_not(ascending > searched if right else ascending >= searched)


def _binary_search(ascending: Tensor, searched: Tensor, right: bool) -> Tensor:
    """Return each searched value's position in the sorted sequence, as searchsorted, in steps of powers of two."""
    length = ascending.shape[-1]
    place = torch.zeros_like(searched, dtype=torch.int64)
    for bit in reversed(range(length.bit_length())):
        further = place + (1 << bit)
        at = (further - 1).clamp(max=length - 1)
        there = _elements_at(ascending, at)
        place = torch.where((further <= length) & _is_before(there, searched, right), further, place)
    return place


def _elements_at(ascending: Tensor, positions: Tensor) -> Tensor:
    """Return the elements at these positions; indexing by a 0-d tensor would convert it to a Python number."""
    if ascending.dim() > 1:
        return ascending.gather(-1, positions)
    return ascending.index_select(0, positions.flatten()).reshape(positions.shape)


def _binary_search_like_eager(ascending: Tensor, searched: Tensor, right: bool) -> Tensor:
    """Search by eager's own bisection, so that NaN at the end of the sorted sequence gives eager's result."""
    length = ascending.shape[-1]
    varies = not isinstance(length, int)
    if varies:  # the length may be 0 at run time, where no element can be read
        ascending = torch.cat((ascending, ascending.new_zeros((*ascending.shape[:-1], 1))), -1)
    place = torch.zeros_like(searched, dtype=torch.int64)
    left = torch.full_like(searched, length, dtype=torch.int64)
    for _ in range(int(min(upper_bound(length), LONGEST)).bit_length()):
        half = left // 2
        at = place + half if varies else (place + half).clamp(max=length - 1)
        there = _elements_at(ascending, at)
        after = _is_before(there, searched, right) & (left > 0)
        place = torch.where(after, place + half + 1, place)
        left = torch.where(after, left - half - 1, half)
    return place


@register_torch_trt_decomposition(aten.bucketize.Tensor)
@register_torch_trt_decomposition(aten.bucketize.Scalar)
def bucketize(self: Argument, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return searchsorted(boundaries, self, out_int32=out_int32, right=right)


@register_torch_trt_decomposition(aten.repeat_interleave.Tensor)
def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Argument:
    if output_size is None:
        return NotImplemented
    places = torch.arange(output_size, device=repeats.device)
    return searchsorted(repeats.cumsum(0), places, right=True, out_int32=repeats.dtype == torch.int32)


@register_torch_trt_decomposition(aten.kthvalue.default)
def kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    values, indices = aten.sort.stable(self, stable=True, dim=dim)
    if self.dim() == 0:
        return values, indices
    chosen = values.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1)
    return chosen if keepdim else (chosen[0].squeeze(dim), chosen[1].squeeze(dim))


def _median(self: Tensor, dim: int, keepdim: bool = False, *, ignore_nan: bool) -> tuple[Tensor, Tensor]:
    """Return the lower of the two middle values and its index. NaN, which sorts last, is the median unless ignored."""
    if self.dim() == 0:
        return self.clone(), torch.zeros_like(self, dtype=torch.int64)
    values, indices = aten.sort.stable(self, stable=True, dim=dim)
    at = _median_position(self.shape[dim], self.isnan().sum(dim, keepdim=True), ignore_nan)
    chosen = values.gather(dim, at), indices.gather(dim, at)
    return chosen if keepdim else (chosen[0].squeeze(dim), chosen[1].squeeze(dim))


def _median_position(length: Argument, nans: Tensor, ignore_nan: bool) -> Tensor:
    """Return the median's position in ``length`` sorted elements, the last ``nans`` of which are NaN; 0 if empty."""
    others: Tensor = length - nans
    middle: Tensor = (others - 1) // 2 if ignore_nan else torch.where(nans > 0, others, (length - 1) // 2)
    return middle.clamp(min=0)


def _median_of_all(self: Tensor, *, ignore_nan: bool) -> Argument:
    """Return the median of all elements; NaN for an empty tensor."""
    row = self.reshape(-1)
    length = row.shape[0]
    if not self.is_floating_point() and isinstance(length, int) and length == 0:
        return NotImplemented
    if not self.is_floating_point() or (isinstance(length, int) and length > 0):
        return _median(row, 0, ignore_nan=ignore_nan)[0]
    values, _ = aten.sort.stable(torch.cat((row, row.new_full((1,), math.nan))), stable=True, dim=0)
    return values.gather(0, _median_position(length, row.isnan().sum(0, keepdim=True), ignore_nan)).squeeze(0)


DECOMPOSITIONS: Final = [
    register_torch_trt_decomposition(op)(partial(function, ignore_nan=op.overloadpacket is aten.nanmedian))
    for function, overload in ((_median, "dim"), (_median_of_all, "default"))
    for op in (getattr(aten.median, overload), getattr(aten.nanmedian, overload))
]
