"""Searching in sorted tensors, and order statistics, in terms of operators that have converters."""

from __future__ import annotations

from typing import Any, Final

import torch

from pipeline.converters.decompositions import register_torch_trt_decomposition

aten = torch.ops.aten
Tensor = torch.Tensor

COMPARED: Final = 64
"""Up to so many sorted values, or of a dynamic number, each is compared; more are halved until one is left."""


@register_torch_trt_decomposition(aten.searchsorted.Tensor)
def searchsorted(
    sorted_sequence: Tensor,
    self: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, bool right=False,
    str? side=None, Tensor? sorter=None) -> Tensor"""
    ascending = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter)
    right, length = right or side == "right", ascending.shape[-1]
    few = not isinstance(length, int) or length <= COMPARED
    found = (_compared if few else _halved)(ascending, self, right)
    return found.to(torch.int32) if out_int32 else found


def _before(ascending: Tensor, values: Tensor, right: bool) -> Tensor:
    """Whether a position is before that of a value; NaN's is after all."""
    return torch.logical_not(ascending > values if right else ascending >= values)


def _compared(ascending: Tensor, values: Tensor, right: bool) -> Tensor:
    return _before(ascending.unsqueeze(-2) if ascending.dim() > 1 else ascending, values.unsqueeze(-1), right).sum(-1)


def _halved(ascending: Tensor, values: Tensor, right: bool) -> Tensor:
    """Search by halving: the position grows by powers of two, the largest first, as long as the element before it lies
    before the value."""
    length = ascending.shape[-1]
    place = torch.zeros_like(values, dtype=torch.int64)
    for bit in reversed(range(length.bit_length())):
        further = place + (1 << bit)
        at = (further - 1).clamp(max=length - 1)
        there = ascending.gather(-1, at) if ascending.dim() > 1 else ascending[at]
        place = torch.where((further <= length) & _before(there, values, right), further, place)
    return place


@register_torch_trt_decomposition(aten.searchsorted.Scalar)
def searchsorted_scalar(sorted_sequence: Tensor, self: Any, **options: Any) -> Tensor:
    """searchsorted.Scalar(Tensor sorted_sequence, Scalar self, *, bool out_int32=False, bool right=False,
    str? side=None, Tensor? sorter=None) -> Tensor"""
    return searchsorted(sorted_sequence, sorted_sequence.new_full((), self), **options)


@register_torch_trt_decomposition(aten.bucketize.Tensor)
def bucketize(self: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor"""
    return searchsorted(boundaries, self, out_int32=out_int32, right=right)


@register_torch_trt_decomposition(aten.bucketize.Scalar)
def bucketize_scalar(self: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """bucketize.Scalar(Scalar self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor"""
    return searchsorted_scalar(boundaries, self, out_int32=out_int32, right=right)


@register_torch_trt_decomposition(aten.repeat_interleave.Tensor)
def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Any:
    """repeat_interleave.Tensor(Tensor repeats, *, SymInt? output_size=None) -> Tensor"""
    if output_size is None:
        return NotImplemented
    places = torch.arange(output_size, device=repeats.device)
    return searchsorted(repeats.cumsum(0), places, right=True, out_int32=repeats.dtype == torch.int32)


@register_torch_trt_decomposition(aten.kthvalue.default)
def kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    values, indices = aten.sort.stable(self, stable=True, dim=dim)
    if self.dim() == 0:
        return values, indices
    chosen = values.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1)
    return chosen if keepdim else (chosen[0].squeeze(dim), chosen[1].squeeze(dim))


def _median(self: Tensor, dim: int, keepdim: bool, ignore_nan: bool) -> tuple[Tensor, Tensor]:
    """The lower of the two middle values. NaN, which is sorted behind all, is the median unless it is ignored."""
    if self.dim() == 0:
        return self.clone(), torch.zeros_like(self, dtype=torch.int64)
    values, indices = aten.sort.stable(self, stable=True, dim=dim)
    length = self.shape[dim]
    nans = self.isnan().sum(dim, keepdim=True)
    if ignore_nan:
        at = ((length - nans - 1) // 2).clamp(min=0)
    else:
        at = torch.where(nans > 0, length - nans, (length - 1) // 2)
    chosen = values.gather(dim, at), indices.gather(dim, at)
    return chosen if keepdim else (chosen[0].squeeze(dim), chosen[1].squeeze(dim))


@register_torch_trt_decomposition(aten.median.dim)
def median(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """median.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    return _median(self, dim, keepdim, ignore_nan=False)


@register_torch_trt_decomposition(aten.nanmedian.dim)
def nanmedian(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """nanmedian.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    return _median(self, dim, keepdim, ignore_nan=True)


@register_torch_trt_decomposition(aten.median.default)
def median_of_all(self: Tensor) -> Tensor:
    """median(Tensor self) -> Tensor"""
    return _median(self.reshape(-1), 0, False, ignore_nan=False)[0]


@register_torch_trt_decomposition(aten.nanmedian.default)
def nanmedian_of_all(self: Tensor) -> Tensor:
    """nanmedian(Tensor self) -> Tensor"""
    return _median(self.reshape(-1), 0, False, ignore_nan=True)[0]
