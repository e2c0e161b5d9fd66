"""Reductions along dims. Halves accumulate in float32, integers in int64."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from functools import partial

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.block_decorators import block
from pipeline.impl.elementwise import arithmetic, layer, logical_not, where, wide
from pipeline.impl.empty import may_leave_none
from pipeline.impl.shape import sampled
from pipeline.network.net import Net
from pipeline.trt import trt

Dims = Sequence[int] | int | None


def all_dims(dim: Dims, rank: int) -> tuple[int, ...]:
    """Return dims as non-negative numbers; without any, all dims."""
    if rank == 0:
        return ()
    if isinstance(dim, int):
        dim = (dim,)
    return tuple(base.axis(d, rank) for d in dim) if dim else tuple(range(rank))


@block
def reduce(net: Net, operation: str, x: ITensor, dims: Sequence[int], keepdim: bool) -> ITensor:
    """Add a reduce layer, by the name of its ``trt.ReduceOperation``. Dims of size 1 are squeezed instead, since their
    kernel is wrong on padded data (`sums-of-one`). A dim that may be empty is padded with a neutral element, since a
    kernel without elements would not write its other results (`empty-loops`)."""
    if base.rank(x) == 0:
        return x
    known = base.known_sizes(net, x)
    if rest := [d for d in dims if known[d] != 1]:
        x = _reduced(net, operation, x, rest, keepdim or len(rest) < len(dims))
    return x if keepdim or len(rest) == len(dims) else base.squeeze(net, x, dims)


def _reduced(net: Net, operation: str, x: ITensor, dims: Sequence[int], keepdim: bool) -> ITensor:
    known = base.known_sizes(net, x)
    empty = [d for d in dims if may_leave_none(net, known[d])]
    if not empty:
        return _layer(net, operation, x, dims, keepdim)
    adds, dtype = "SUM" if operation == "AVG" else operation, base.dtype_of(x)
    sizes = {d: base.size_tensor(net, base.size(net, x, d)) for d in dims}
    one_more = [base.elementwise(net, "SUM", sizes[d], base.size_tensor(net, 1)) for d in empty]
    fill = base.tensor(net, 0 if adds == "SUM" else neutral(adds, dtype), dtype)
    x = sampled(net, x, empty, [0] * len(empty), one_more, mode="FILL", fill=fill)
    result = _layer(net, adds, x, dims, keepdim)
    if operation != "AVG":
        return result
    count = functools.reduce(partial(base.elementwise, net, "PROD"), sizes.values())
    return base.elementwise(
        net, "DIV", result, base.reshape(net, base.cast(net, count, dtype), [1] * base.rank(result))
    )


def _layer(net: Net, operation: str, x: ITensor, dims: Sequence[int], keepdim: bool) -> ITensor:
    mask = base.axes_mask(dims, base.rank(x))
    return net.add("reduce", x, trt.ReduceOperation.__members__[operation], mask, keepdim).get_output(0)


def neutral(operation: str, dtype: torch.dtype) -> int | float:
    """Return the neutral element of ``SUM``, ``PROD``, ``MAX`` or ``MIN``."""
    if operation == "SUM":
        return -0.0 if dtype.is_floating_point else 0
    if operation == "PROD":
        return 1
    sign = -1 if operation == "MAX" else 1
    if dtype.is_floating_point:
        return sign * math.inf
    return torch.iinfo(dtype).min if sign < 0 else torch.iinfo(dtype).max


@block
def total(net: Net, operation: str, x: Value, dim: Dims, keepdim: bool, dtype: torch.dtype) -> ITensor:
    """``SUM``, ``PROD`` or ``AVG`` in a dtype; halves accumulate in float32 and are rounded once."""
    value = base.cast(net, base.tensor(net, x, dtype), wide(dtype))
    return base.cast(net, reduce(net, operation, value, all_dims(dim, base.rank(x)), keepdim), dtype)


@block
def extremum(net: Net, operation: str, x: Value, dim: Dims, keepdim: bool) -> ITensor:
    """``MAX`` or ``MIN``, for bools any or all; NaN, which TensorRT's layer ignores, propagates."""
    dtype, dims = base.dtype_of(x), all_dims(dim, base.rank(x))
    value = base.tensor(net, x, arithmetic(dtype))
    result = base.cast(net, reduce(net, operation, value, dims, keepdim), dtype)
    if not dtype.is_floating_point or not dims:
        return result
    return where(net, any_nan(net, value, dims, keepdim), math.nan, result, dtype)


@block
def any_nan(net: Net, x: ITensor, dims: Sequence[int], keepdim: bool) -> ITensor:
    marks = base.cast(net, base.unary(net, "ISNAN", x), torch.int32)
    return layer(net, "GREATER", reduce(net, "SUM", marks, dims, keepdim), 0, torch.int32)


@block
def any_of(net: Net, x: Value, dim: Dims, keepdim: bool) -> ITensor:
    count = base.cast(net, base.tensor(net, x, torch.bool), torch.int32)
    found = reduce(net, "SUM", count, all_dims(dim, base.rank(x)), keepdim)
    return layer(net, "GREATER", found, 0, torch.int32)


@block
def all_of(net: Net, x: Value, dim: Dims, keepdim: bool) -> ITensor:
    zero = logical_not(net, base.tensor(net, x))
    return logical_not(net, any_of(net, zero, dim, keepdim))
