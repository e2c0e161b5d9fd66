"""Add cumulative operators (scans) along a dim, such as cumsum and cummax.
TensorRT's Cumulative layer computes sums. Products, extrema and log-sum-exp use a parallel scan, which combines each
element with the element 1, 2, 4, … positions before it."""

from __future__ import annotations

import math

import numpy as np
import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Size, Value
from pipeline.impl.block_decorators import block
from pipeline.impl.elementwise import arithmetic_dtype, where, wide_dtype
from pipeline.impl.shape import arange, bounds_of, expression, strided_slice
from pipeline.network.net import Net
from pipeline.trt import trt

LONGEST = (1 << 31) - 1
"""The maximum length that is assumed for a dim without an upper bound: a TensorRT tensor has no more elements."""


@block
def cumulative_sum(net: Net, x: Value, dim: int, dtype: torch.dtype) -> ITensor:
    """Return the cumulative sum along a dim, computed in ``dtype``."""
    value = base.cast(net, base.tensor(net, x, dtype), wide_dtype(dtype))
    if base.rank(value) == 0:
        return base.cast(net, value, dtype)
    axis = base.constant(net, np.array(base.axis(dim, base.rank(value)), dtype=np.int64))
    layer = net.add("cumulative", value, axis, trt.CumulativeOperation.SUM, False, False)
    return base.cast(net, layer.get_output(0), dtype)


@block
def cumulative_product(net: Net, x: Value, dim: int, dtype: torch.dtype) -> ITensor:
    """Return the cumulative product along a dim, computed in ``dtype``."""
    length = _dim_length(net, x, dim)
    value = base.cast(net, base.tensor(net, x, dtype), wide_dtype(dtype))
    one = base.tensor(net, 1, base.dtype_of(value))
    for step in _scan_distances(net, length):
        before = _shift_along_dim(net, value, dim, step, length, one)
        value = base.elementwise(net, "PROD", before, value)
    return base.cast(net, value, dtype)


@block
def cumulative_extremum(net: Net, largest: bool, x: Value, dim: int) -> tuple[ITensor, ITensor]:
    """Return the cumulative maximum (or minimum) along a dim and the index of its last occurrence."""
    dtype, length = base.dtype_of(x), _dim_length(net, x, dim)
    value = base.tensor(net, x, arithmetic_dtype(dtype))
    index = _positions_along_dim(net, value, dim, length)
    for step in _scan_distances(net, length):
        earlier_value = _shift_along_dim(net, value, dim, step, length, None)
        earlier_index = _shift_along_dim(net, index, dim, step, length, None)
        later = _is_new_extremum(net, value, earlier_value, "GREATER" if largest else "LESS")
        value = where(net, later, value, earlier_value)
        index = where(net, later, index, earlier_index)
    return base.cast(net, value, dtype), index


@block
def cumulative_log_sum_exp(net: Net, x: Value, dim: int) -> ITensor:
    """Return the cumulative log-sum-exp along a dim in float32, without overflow."""
    length, value = _dim_length(net, x, dim), base.tensor(net, x, torch.float32)
    none = base.tensor(net, -math.inf, torch.float32)
    for step in _scan_distances(net, length):
        before = _shift_along_dim(net, value, dim, step, length, none)
        larger = base.elementwise(net, "MAX", before, value)
        larger = where(net, base.unary(net, "ISINF", larger), 0.0, larger)
        first, second = (base.unary(net, "EXP", base.elementwise(net, "SUB", v, larger)) for v in (before, value))
        logarithm = base.unary(net, "LOG", base.elementwise(net, "SUM", first, second))
        value = base.elementwise(net, "SUM", logarithm, larger)
    return value


def _is_new_extremum(net: Net, later: ITensor, earlier: ITensor, operation: str) -> ITensor:
    """Return whether the later element becomes the new extremum: it is NaN, or at least as extreme."""
    equal = base.elementwise(net, "EQUAL", later, earlier)
    wins = base.elementwise(net, "OR", base.elementwise(net, operation, later, earlier), equal)
    if not base.dtype_of(later).is_floating_point:
        return wins
    return base.elementwise(net, "OR", wins, base.unary(net, "ISNAN", later))


def _positions_along_dim(net: Net, x: ITensor, dim: int, length: Size) -> ITensor:
    """Return a tensor of the shape of ``x`` that stores positions along ``dim``: 0 to ``length`` - 1, its size."""
    rank = base.rank(x)
    if rank == 0:
        return base.tensor(net, 0, torch.int64)
    axis = base.axis(dim, rank)
    line = arange(net, 0, 1, length, torch.int64)
    line = base.unsqueeze(net, line, [d for d in range(rank) if d != axis])
    zero = base.cast(net, base.elementwise(net, "GREATER", x, x), torch.int64)  # of the shape of x
    return base.elementwise(net, "SUM", zero, line)


def _dim_length(net: Net, x: Value, dim: int) -> Size:
    if base.rank(x) == 0:
        return 1
    known = base.known_sizes(net, x)[dim]
    return base.size(net, x, dim) if known is None else known


def _scan_distances(net: Net, length: Size) -> list[int]:
    """Return the distances 1, 2, 4, … below the dim's maximum size; a scan has a round of layers for each distance."""
    longest = LONGEST if isinstance(length, trt.ITensor) else bounds_of(net, expression(length))[1]
    return [1 << k for k in range(int(min(max(longest, 1), LONGEST) - 1).bit_length())]


def _shift_along_dim(net: Net, x: ITensor, dim: int, step: int, length: Size, fill: ITensor | None) -> ITensor:
    """Shift by ``step`` positions along a dim; the first positions get ``fill``, or the first element if it is None."""
    mode = "CLAMP" if fill is None else "FILL"
    axis = base.axis(dim, base.rank(x))
    return strided_slice(net, x, [axis], [-step], [length], mode=mode, fill=fill)
