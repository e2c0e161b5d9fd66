"""Work around kernels that leave a result unwritten if another tensor is empty (the bug `empty-loops`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, Size, Value, block, network_query
from pipeline.impl.shape import bounds_of, expression
from pipeline.quirks import is_avoided
from pipeline.trt import CAPABILITIES, trt


@network_query
def may_be_zero(net: Net, size: Size) -> bool:
    """Return whether a size is 0 for some sizes in the ranges of the inputs."""
    return bounds_of(net, expression(size))[0] < 1


@network_query
def may_leave_results_unwritten(net: Net, size: Size) -> bool:
    """Return whether a kernel that loops over a dim of this size (None: unknown) may leave results unwritten: if the
    size may be 0, and depends on data or is one of ``marks.empty_sizes`` (see `pipeline.quirks.empty_broadcast`)."""
    if not is_avoided("empty-loops"):
        return False
    if size is None:
        data = any(name.startswith("u") and each.min < 1 for name, each in net.ctx.ranges.items())
        return data or bool(net.ctx.marks.empty_sizes)
    expr = expression(size)
    decides = free_unbacked_symbols(expr) or any(s.name in net.ctx.marks.empty_sizes for s in expr.free_symbols)
    return bool(decides) and may_be_zero(net, size)


@block
def separate_from_empty_dims(net: Net, operands: Sequence[Value], tensors: Sequence[ITensor]) -> tuple[ITensor, ...]:
    """Return ``tensors``, a layer's inputs made from ``operands``; each that broadcasts over a possibly empty dim is
    passed through a cumulative sum over a dim of size 1, which TensorRT never fuses with the layer."""
    if not CAPABILITIES.cumulative:
        return tuple(tensors)
    rank = max(map(base.rank, tensors))
    sizes = [[1] * (rank - base.rank(v)) + (base.known_sizes(net, v) if base.rank(v) else []) for v in operands]
    results = [*tensors]
    for i, value in enumerate(operands):
        others = [own for j, own in enumerate(sizes) if j != i]
        for dim in range(rank) if isinstance(value, trt.ITensor) else ():
            beside = (own[dim] for own in others if own[dim] not in (None, 1))
            if sizes[i][dim] == 1 and any(may_leave_results_unwritten(net, size) for size in beside):
                results[i] = _pass_through_cumulative_sum(net, tensors[i], dim)
                break
    return tuple(results)


def _pass_through_cumulative_sum(net: Net, x: ITensor, dim: int) -> ITensor:
    """Return ``x`` after a running sum along ``dim`` of size 1: it changes no value, and TensorRT never fuses it."""
    dtype = base.dtype_of(x)
    summed = base.cast(net, x, torch.int32 if dtype == torch.bool else dtype)
    axis = base.constant(net, np.array(dim, dtype=np.int64))
    layer = net.add("cumulative", summed, axis, trt.CumulativeOperation.SUM, False, False)
    return base.cast(net, layer.get_output(0), dtype)
