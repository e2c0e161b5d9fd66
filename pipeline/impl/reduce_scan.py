"""Running sums, products and extrema along a dim. TensorRT's Cumulative layer sums; for the others each element is
combined with the one 1, 2, 4, … places before it."""

from __future__ import annotations

import numpy as np
import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Size, Value
from pipeline.impl.creation import arange
from pipeline.impl.elementwise import arithmetic, where, wide
from pipeline.impl.shape import bounds_of, expression, sampled
from pipeline.network.context import ConversionContext
from pipeline.trt import trt

LONGEST = (1 << 31) - 1
"""What a dim is taken to be at most where nothing is known of it: a tensor of TensorRT has no more elements."""


def cumulative_sum(ctx: ConversionContext, name: str, x: Value, dim: int, dtype: torch.dtype) -> ITensor:
    """The sum of what lies before and at each place along a dim, in a dtype."""
    value = base.cast(ctx, name, base.tensor(ctx, name, x, dtype), wide(dtype))
    if base.rank(value) == 0:
        return base.cast(ctx, name, value, dtype)
    axis = base.constant(ctx, name, np.array(base.axis(dim, base.rank(value)), dtype=np.int64))
    layer = ctx.add(name, "cumulative", value, axis, trt.CumulativeOperation.SUM, False, False)
    return base.cast(ctx, name, layer.get_output(0), dtype)


def cumulative_product(ctx: ConversionContext, name: str, x: Value, dim: int, dtype: torch.dtype) -> ITensor:
    """The product of what lies before and at each place along a dim, in a dtype."""
    length = _length(ctx, name, x, dim)
    value = base.cast(ctx, name, base.tensor(ctx, name, x, dtype), wide(dtype))
    one = base.tensor(ctx, name, 1, base.dtype_of(value))
    for step in _steps(ctx, length):
        before = _moved(ctx, name, value, dim, step, length, one)
        value = base.elementwise(ctx, name, "PROD", before, value)
    return base.cast(ctx, name, value, dtype)


def cumulative_extremum(
    ctx: ConversionContext, name: str, largest: bool, x: Value, dim: int
) -> tuple[ITensor, ITensor]:
    """The largest (or smallest) element before and at each place along a dim, and the index of the last such."""
    dtype, length = base.dtype_of(x), _length(ctx, name, x, dim)
    value = base.tensor(ctx, name, x, arithmetic(dtype))
    index = _indices(ctx, name, value, dim, length)
    for step in _steps(ctx, length):
        earlier_value = _moved(ctx, name, value, dim, step, length, None)
        earlier_index = _moved(ctx, name, index, dim, step, length, None)
        later = _wins(ctx, name, value, earlier_value, "GREATER" if largest else "LESS")
        value = where(ctx, name, later, value, earlier_value)
        index = where(ctx, name, later, index, earlier_index)
    return base.cast(ctx, name, value, dtype), index


def _wins(ctx: ConversionContext, name: str, later: ITensor, earlier: ITensor, operation: str) -> ITensor:
    """Whether the later element is taken: it is beyond or equal, or NaN."""
    equal = base.elementwise(ctx, name, "EQUAL", later, earlier)
    wins = base.elementwise(ctx, name, "OR", base.elementwise(ctx, name, operation, later, earlier), equal)
    if not base.dtype_of(later).is_floating_point:
        return wins
    return base.elementwise(ctx, name, "OR", wins, base.unary(ctx, name, "ISNAN", later))


def _indices(ctx: ConversionContext, name: str, x: ITensor, dim: int, length: Size) -> ITensor:
    """At each place its index along the dim."""
    rank = base.rank(x)
    if rank == 0:
        return base.tensor(ctx, name, 0, torch.int64)
    axis = base.axis(dim, rank)
    line = arange(ctx, name, 0, 1, length, torch.int64)
    line = base.unsqueeze(ctx, name, line, [d for d in range(rank) if d != axis])
    zero = base.cast(ctx, name, base.elementwise(ctx, name, "GREATER", x, x), torch.int64)  # of the shape of x
    return base.elementwise(ctx, name, "SUM", zero, line)


def _length(ctx: ConversionContext, name: str, x: Value, dim: int) -> Size:
    if base.rank(x) == 0:
        return 1
    known = base.known_sizes(ctx, x)[dim]
    return base.size(ctx, name, x, dim) if known is None else known


def _steps(ctx: ConversionContext, length: Size) -> list[int]:
    """1, 2, 4, … below the longest that the dim may be: each doubling of it costs one more round of layers."""
    longest = LONGEST if isinstance(length, trt.ITensor) else bounds_of(ctx, expression(length))[1]
    return [1 << k for k in range(int(min(max(longest, 1), LONGEST) - 1).bit_length())]


def _moved(
    ctx: ConversionContext, name: str, x: ITensor, dim: int, step: int, length: Size, fill: ITensor | None
) -> ITensor:
    """Each element's neighbour so many places before it; where there is none ``fill``, or the first element."""
    mode = "CLAMP" if fill is None else "FILL"
    axis = base.axis(dim, base.rank(x))
    return sampled(ctx, name, x, [axis], [-step], [length], mode=mode, fill=fill)
