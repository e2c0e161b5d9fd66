"""Convert adaptive pooling: any input size to a given output size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pipeline.aten.arguments import argument
from pipeline.aten.types import aten
from pipeline.converters.binding import converts
from pipeline.converters.declare import Rejection
from pipeline.converters.pool import indices_are_read
from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.pool import avg_pool, gathered_argmax, gathered_max, gathered_mean, max_pool
from pipeline.impl.pool_windows import Windows, adaptive_places
from pipeline.impl.reduce import extremum
from pipeline.network.net import Net
from pipeline.settings import CompilationSettings
from pipeline.shapes.environment import expression
from pipeline.trt import trt

AVERAGE: dict[Any, int] = {
    aten.adaptive_avg_pool1d.default: 1,
    aten.adaptive_avg_pool2d.default: 2,
    aten.adaptive_avg_pool3d.default: 3,
    aten._adaptive_avg_pool2d.default: 2,
    aten._adaptive_avg_pool3d.default: 3,
}
MAX: dict[Any, int] = {
    aten.adaptive_max_pool1d.default: 1,
    aten.adaptive_max_pool2d.default: 2,
    aten.adaptive_max_pool3d.default: 3,
}
RANKS = {**AVERAGE, **MAX}


Sizes = tuple[list[Any], list[Any]]
"""The sizes of the pooled dims before and after: ints or expressions."""


def _sizes(node: torch.fx.Node, rank: int) -> Sizes:
    made = node.meta["val"]
    result = made if isinstance(made, torch.Tensor) else made[0]
    before = argument(node, "self").meta["val"].shape[-rank:]
    return [expression(s) for s in before], [expression(s) for s in result.shape[-rank:]]


def pooled_dims_are_static(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Windows of a dynamic dim are known only if there is one, or one for each element."""
    x, rank = argument(node, "self").meta["val"], RANKS[node.target]
    for dim, (before, after) in enumerate(zip(*_sizes(node, rank), strict=True), x.dim() - rank):
        if before != after and after != 1 and not (isinstance(before, int) and isinstance(after, int)):
            return Rejection(f"dim {dim} of the input is {before}; adaptive pooling to {after} needs a static size")
        if not isinstance(before, int) and indices_are_read(node):
            return Rejection(f"dim {dim} of the input is {before}; pooling with indices needs a static size")
    return True


def _windows_per_dim(before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    """Return the windows of each dim; None if each element is one window."""
    return [None if b == a else adaptive_places(b, a) for b, a in zip(before, after, strict=True)]


def _one_window(before: Sequence[Any], after: Sequence[Any]) -> bool:
    return all(a in (1, b) for b, a in zip(before, after, strict=True))


def _regular(before: Sequence[Any], after: Sequence[Any]) -> Windows | None:
    """Return equal windows, if each input size is a multiple of the output size; else None."""
    if not all(
        isinstance(b, int) and isinstance(a, int) and a and b % a == 0 for b, a in zip(before, after, strict=True)
    ):
        return None
    kernel = [b // a for b, a in zip(before, after, strict=True)]
    ones = [1] * len(kernel)
    return Windows(kernel, kernel, [0] * len(kernel), ones, list(before), list(after))


def _global_pool(net: Net, x: ITensor, operation: trt.ReduceOperation, sizes: Sizes) -> ITensor:
    """Reduce the dims that have more than one element, if each dim has a single window."""
    first = base.rank(x) - len(sizes[0])
    dims = [first + i for i, (b, a) in enumerate(zip(*sizes, strict=True)) if b != a]
    if not dims:
        return x
    if operation == trt.ReduceOperation.MAX:
        return extremum(net, "MAX", x, dims, True)
    wide = base.cast(net, x, torch.float32)
    reduced = net.add("reduce", wide, operation, base.axes_mask(dims, base.rank(x)), True).get_output(0)
    return base.cast(net, reduced, base.dtype_of(x))


def _without_dynamic(net: Net, x: ITensor, operation: trt.ReduceOperation, sizes: Sizes) -> tuple[ITensor, Sizes]:
    """Return ``x`` with the dynamic dims, which have a single window, reduced; and the sizes of the others."""
    rows = [(1, 1, b, a) if not isinstance(b, int) and a == 1 else (b, a, 1, 1) for b, a in zip(*sizes, strict=True)]
    before, after, dynamic, one = ([row[i] for row in rows] for i in range(4))
    return _global_pool(net, x, operation, (dynamic, one)), (before, after)


@converts(AVERAGE, validator=pooled_dims_are_static)
def adaptive_avg_pool(net: Net, rank: int, input: Value) -> ITensor:
    """adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor"""
    x, sizes = base.tensor(net, input), _sizes(net.node, rank)
    if _one_window(*sizes):
        return _global_pool(net, x, trt.ReduceOperation.AVG, sizes)
    if (windows := _regular(*sizes)) is not None:
        return avg_pool(net, x, windows, False, None)
    wide = base.cast(net, x, torch.float32)
    wide, sizes = _without_dynamic(net, wide, trt.ReduceOperation.AVG, sizes)
    return base.cast(net, gathered_mean(net, wide, _windows_per_dim(*sizes)), base.dtype_of(x))


@converts(MAX, validator=pooled_dims_are_static)
def adaptive_max_pool(net: Net, rank: int, input: Value) -> tuple[ITensor, ITensor | None]:
    """adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor)"""
    x, sizes = base.tensor(net, input), _sizes(net.node, rank)
    if indices_are_read(net.node):
        places = [adaptive_places(b, a) for b, a in zip(*sizes, strict=True)]
        return gathered_argmax(net, x, places, sizes[0])
    if _one_window(*sizes):
        return _global_pool(net, x, trt.ReduceOperation.MAX, sizes), None
    if (windows := _regular(*sizes)) is not None and base.dtype_of(x).is_floating_point:
        return max_pool(net, x, windows), None
    x, sizes = _without_dynamic(net, x, trt.ReduceOperation.MAX, sizes)
    return gathered_max(net, x, _windows_per_dim(*sizes)), None
