"""Histograms: how many elements lie above each edge, and the differences of these numbers."""

from __future__ import annotations

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.elementwise import compare, compare_or_equal, layer
from pipeline.impl.reduce import reduce
from pipeline.impl.shape import concatenate, sampled
from pipeline.network.context import ConversionContext


def histogram(ctx: ConversionContext, name: str, x: Value, bins: int, low: float, high: float) -> ITensor:
    """How many elements each of the bins of one width from ``low`` to ``high`` has; the last includes ``high``."""
    dtype = base.dtype_of(x)
    edges = _edges(bins, low, high, dtype)
    column = base.reshape(ctx, name, base.tensor(ctx, name, x), [-1, 1])
    from_edge = compare_or_equal(ctx, name, "GREATER", column, edges[None, :-1].contiguous())
    beyond = compare(ctx, name, "GREATER", column, edges[None, -1:].contiguous())
    counts = [_count(ctx, name, flags) for flags in (from_edge, beyond)]
    later = concatenate(ctx, name, [sampled(ctx, name, counts[0], [0], [1], [bins - 1]), counts[1]], 0, torch.int32)
    return layer(ctx, name, "SUB", counts[0], later, torch.int32)


def _edges(bins: int, low: float, high: float, dtype: torch.dtype) -> torch.Tensor:
    """The least element of each bin, and the greatest of the last. Ints, which only a GPU counts, are in bin
    ``(x - low) * bins // (high - low)``, as its kernel has it."""
    if dtype.is_floating_point:
        return torch.linspace(low, high, bins + 1, dtype=dtype)
    first, width = int(low), int(high) - int(low)
    return torch.tensor([first - (-b * width // bins) for b in range(bins + 1)], dtype=dtype)


def _count(ctx: ConversionContext, name: str, flags: ITensor) -> ITensor:
    return reduce(ctx, name, "SUM", base.cast(ctx, name, flags, torch.int32), [0], keepdim=False)
