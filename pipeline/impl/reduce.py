"""Reductions along dims. Halves are summed in float32, integers in int64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.elementwise import arithmetic, layer, logical_not, where, wide
from pipeline.network.context import ConversionContext
from pipeline.trt import trt

Dims = Sequence[int] | int | None


def all_dims(dim: Dims, rank: int) -> tuple[int, ...]:
    """Dims counted from the start; none given means all. Rank 0 has none, whatever is given."""
    if rank == 0:
        return ()
    if isinstance(dim, int):
        dim = (dim,)
    return tuple(base.axis(d, rank) for d in dim) if dim else tuple(range(rank))


def reduce(
    ctx: ConversionContext, name: str, operation: str, x: ITensor, dims: Sequence[int], keepdim: bool
) -> ITensor:
    """One reduce layer, by the name of its ``trt.ReduceOperation``; nothing is reduced of rank 0."""
    if base.rank(x) == 0:
        return x
    mask = base.axes_mask(dims, base.rank(x))
    return ctx.add(name, "reduce", x, trt.ReduceOperation.__members__[operation], mask, keepdim).get_output(0)


def total(
    ctx: ConversionContext, name: str, operation: str, x: Value, dim: Dims, keepdim: bool, dtype: torch.dtype
) -> ITensor:
    """``SUM``, ``PROD`` or ``AVG`` in a dtype: halves are accumulated in float32 and rounded once."""
    value = base.cast(ctx, name, base.tensor(ctx, name, x, dtype), wide(dtype))
    return base.cast(ctx, name, reduce(ctx, name, operation, value, all_dims(dim, base.rank(x)), keepdim), dtype)


def extremum(ctx: ConversionContext, name: str, operation: str, x: Value, dim: Dims, keepdim: bool) -> ITensor:
    """``MAX`` or ``MIN`` of integers and floats; of bools, whether any or all hold. NaN where there is one: the layer
    passes over it."""
    dtype, dims = base.dtype_of(x), all_dims(dim, base.rank(x))
    value = base.tensor(ctx, name, x, arithmetic(dtype))
    result = base.cast(ctx, name, reduce(ctx, name, operation, value, dims, keepdim), dtype)
    if not dtype.is_floating_point or not dims:
        return result
    return where(ctx, name, any_nan(ctx, name, value, dims, keepdim), math.nan, result, dtype)


def any_nan(ctx: ConversionContext, name: str, x: ITensor, dims: Sequence[int], keepdim: bool) -> ITensor:
    """Whether there is a NaN along dims."""
    marks = base.cast(ctx, name, base.unary(ctx, name, "ISNAN", x), torch.int32)
    return layer(ctx, name, "GREATER", reduce(ctx, name, "SUM", marks, dims, keepdim), 0, torch.int32)


def any_of(ctx: ConversionContext, name: str, x: Value, dim: Dims, keepdim: bool) -> ITensor:
    """Whether something is not zero; of nothing, False."""
    count = base.cast(ctx, name, base.tensor(ctx, name, x, torch.bool), torch.int32)
    found = reduce(ctx, name, "SUM", count, all_dims(dim, base.rank(x)), keepdim)
    return layer(ctx, name, "GREATER", found, 0, torch.int32)


def all_of(ctx: ConversionContext, name: str, x: Value, dim: Dims, keepdim: bool) -> ITensor:
    """Whether nothing is zero; of nothing, True."""
    zero = logical_not(ctx, name, base.tensor(ctx, name, x))
    return logical_not(ctx, name, any_of(ctx, name, zero, dim, keepdim))
