"""Histograms: count the elements above each edge, and take the differences."""

from __future__ import annotations

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.block_decorators import block
from pipeline.impl.elementwise import compare, compare_or_equal, layer
from pipeline.impl.reduce import reduce
from pipeline.impl.shape import concatenate, sampled
from pipeline.network.net import Net


@block
def histogram(net: Net, x: Value, bins: int, low: float, high: float) -> ITensor:
    """Count the elements in each of the equal bins from ``low`` to ``high``; the last includes ``high``."""
    dtype = base.dtype_of(x)
    edges = _edges(bins, low, high, dtype)
    column = base.reshape(net, base.tensor(net, x), [-1, 1])
    from_edge = compare_or_equal(net, "GREATER", column, edges[None, :-1].contiguous())
    beyond = compare(net, "GREATER", column, edges[None, -1:].contiguous())
    counts = [_count(net, flags) for flags in (from_edge, beyond)]
    later = concatenate(net, [sampled(net, counts[0], [0], [1], [bins - 1]), counts[1]], 0, torch.int32)
    return layer(net, "SUB", counts[0], later, torch.int32)


def _edges(bins: int, low: float, high: float, dtype: torch.dtype) -> torch.Tensor:
    """Return the least element of each bin, and the greatest of the last. Integers, which eager counts on a GPU only,
    are in bin ``(x - low) * bins // (high - low)``."""
    if dtype.is_floating_point:
        return torch.linspace(low, high, bins + 1, dtype=dtype)
    first, width = int(low), int(high) - int(low)
    return torch.tensor([first - (-b * width // bins) for b in range(bins + 1)], dtype=dtype)


def _count(net: Net, flags: ITensor) -> ITensor:
    return reduce(net, "SUM", base.cast(net, flags, torch.int32), [0], keepdim=False)
