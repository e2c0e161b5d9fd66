"""Convert pooling with windows of fixed size, and adaptive pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from pipeline.converters.binding import CompilationSettings, Rejection, argument, aten, converts
from pipeline.impl import base, pool
from pipeline.impl.base import ITensor, Net, Value
from pipeline.impl.pool import gather_argmax, gather_max, gather_mean
from pipeline.impl.pool_windows import Windows, adaptive_positions
from pipeline.impl.reduce import extremum, reduce, reduced_dims
from pipeline.shapes.environment import expression
from pipeline.trt import trt

MAX: dict[Any, int] = {
    **{getattr(aten, f"max_pool{rank}d").default: rank for rank in (1, 2, 3)},
    **{getattr(aten, f"max_pool{rank}d_with_indices").default: rank for rank in (2, 3)},
}
AVERAGE: dict[Any, int] = {getattr(aten, f"avg_pool{rank}d").default: rank for rank in (1, 2, 3)}


def _pool_windows(node: torch.fx.Node, rank: int) -> Windows:
    """Return the windows of a pooling node. Kernels are clipped to the padded input, since TensorRT limits their size;
    ``ceil_mode`` is ignored if it does not change the number of windows."""

    def per_dim(name: str, default: list[int]) -> list[int]:
        value = list(argument(node, name, default)) or default
        return value * (rank if len(value) == 1 else 1)

    kernel = per_dim("kernel_size", [])
    shape, stride = argument(node, "self").meta["val"].shape[-rank:], per_dim("stride", kernel)
    sizes = [_static_size(s) for s in shape]
    padding, dilation = per_dim("padding", [0]), per_dim("dilation", [1])
    rows = zip(kernel, sizes, padding, dilation, strict=True)
    ends = (s + 2 * p - d * (k - 1) - 1 for k, s, p, d in zip(kernel, shape, padding, dilation, strict=True))
    even = all(statically_known_true(end % step == 0) for end, step in zip(ends, stride, strict=True))
    return Windows(
        [min(k, s + 2 * p) if s and d == 1 else k for k, s, p, d in rows],
        stride,
        padding,
        dilation,
        sizes,
        [_static_size(s) for s in _first_fake_result(node).shape[-rank:]],
        bool(argument(node, "ceil_mode")) and not even,
    )


def _first_fake_result(node: torch.fx.Node) -> torch.Tensor:
    made = node.meta["val"]
    result: torch.Tensor = made if isinstance(made, torch.Tensor) else made[0]
    return result


def _static_size(size: int | torch.SymInt) -> int | None:
    return size if isinstance(size, int) else None


def _reject_dynamic(node: torch.fx.Node, operation: str) -> Rejection:
    """Return a rejection that names the input's dynamic dim, and the operation that needs static sizes."""
    shape = argument(node, "self").meta["val"].shape
    dim = next(i for i, s in reversed(list(enumerate(shape))) if isinstance(s, torch.SymInt))
    return Rejection(f"dim {dim} of the input is dynamic ({shape[dim]}); {operation} needs static sizes")


def _check_max_pool(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Dilation, integers and returned indices need static sizes, since TensorRT's layer does not support them."""
    windows = _pool_windows(node, MAX[node.target])
    if windows.has_static_sizes:
        return True
    if max(windows.dilation) > 1:
        return _reject_dynamic(node, "dilated pooling")
    if not argument(node, "self").meta["val"].is_floating_point():
        return _reject_dynamic(node, "pooling of integers")
    if indices_are_read(node):
        return _reject_dynamic(node, "pooling with indices")
    rows = zip(windows.kernel, windows.stride, windows.padding, windows.dilation, strict=True)
    if windows.ceil_mode and any(d * (k - 1) + 1 < s + p for k, s, p, d in rows):
        return _reject_dynamic(node, "this ceil_mode")  # a window may lie beyond the input, which eager would omit
    return True


@converts(MAX, validator=_check_max_pool)
def max_pool(net: Net, rank: int, input: Value) -> ITensor:
    """max_pool2d(Tensor self, int[2] kernel_size, …) -> Tensor; also 1d, 3d (``rank``). `net.node` has the windows."""
    windows, x = _pool_windows(net.node, rank), base.tensor(net, input)
    if indices_are_read(net.node):
        return gather_argmax(net, x, windows.positions(), [s or 0 for s in windows.sizes])
    if max(windows.dilation) > 1 or not base.dtype_of(x).is_floating_point:
        result = gather_max(net, x, windows.positions())
    else:
        result = pool.max_pool(net, x, windows)
    return result if isinstance(net.node.meta["val"], torch.Tensor) else (result, None)


def indices_are_read(node: torch.fx.Node) -> bool:
    """Return whether another node reads the indices that max pooling returns."""
    given = not isinstance(node.meta["val"], torch.Tensor)
    return given and any(u.op == "output" or u.args[1] == 1 for u in node.users)


def _has_single_window(node: torch.fx.Node, windows: Windows) -> bool:
    """Return whether a single window covers the whole input, for every size in the ranges of its dims."""
    sizes = argument(node, "self").meta["val"].shape[-len(windows.kernel) :]
    divided = argument(node, "divisor_override", None) is not None
    return not (divided or any(windows.padding)) and all(
        statically_known_true(size <= k) for size, k in zip(sizes, windows.kernel, strict=True)
    )


def _check_average_pool(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The input must be floating-point; ceil_mode needs static sizes, unless a single window covers the input."""
    x = argument(node, "self").meta["val"]
    if not x.is_floating_point():
        return Rejection(f"the input is {x.dtype}; TensorRT supports average pooling of floating-point tensors only")
    windows = _pool_windows(node, AVERAGE[node.target])
    if not windows.rounds_up or _has_single_window(node, windows):
        return True
    return _reject_dynamic(node, "averaging with ceil_mode, which RTX 1.4 builds but may refuse to run at some sizes,")


@converts(AVERAGE, validator=_check_average_pool)
def avg_pool(
    net: Net, rank: int, input: Value, count_include_pad: bool, divisor_override: int | None = None
) -> ITensor:
    """avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], …) -> Tensor; also for 1 and 3 dims (``rank``)"""
    x, windows = base.tensor(net, input), _pool_windows(net.node, rank)
    if windows.rounds_up and _has_single_window(net.node, windows):
        wide = base.cast(net, x, torch.float32)
        mean = reduce(net, "AVG", wide, reduced_dims(range(-rank, 0), base.rank(x)), keepdim=True)
        return base.cast(net, mean, base.dtype_of(x))
    return pool.avg_pool(net, x, windows, count_include_pad, divisor_override)


ADAPTIVE_AVERAGE: dict[Any, int] = {
    **{getattr(aten, f"adaptive_avg_pool{rank}d").default: rank for rank in (1, 2, 3)},
    **{getattr(aten, f"_adaptive_avg_pool{rank}d").default: rank for rank in (2, 3)},
}
ADAPTIVE_MAX: dict[Any, int] = {getattr(aten, f"adaptive_max_pool{rank}d").default: rank for rank in (1, 2, 3)}
RANKS = ADAPTIVE_AVERAGE | ADAPTIVE_MAX

Sizes = tuple[list[Any], list[Any]]
"""The sizes of the pooled dims of the input, and of the result, as ints or expressions."""


def _input_and_result_sizes(node: torch.fx.Node, rank: int) -> Sizes:
    before = argument(node, "self").meta["val"].shape[-rank:]
    return [expression(s) for s in before], [expression(s) for s in _first_fake_result(node).shape[-rank:]]


def check_pooled_dims(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """A dynamic dim must be pooled to size 1 or keep its size, and no indices of it can be returned."""
    x, rank = argument(node, "self").meta["val"], RANKS[node.target]
    for dim, (before, after) in enumerate(zip(*_input_and_result_sizes(node, rank), strict=True), x.dim() - rank):
        if before != after and after != 1 and not (isinstance(before, int) and isinstance(after, int)):
            return Rejection(f"dim {dim} of the input is {before}; adaptive pooling to {after} needs a static size")
        if not isinstance(before, int) and indices_are_read(node):
            return Rejection(f"dim {dim} of the input is dynamic ({before}); pooling with indices needs a static size")
    return True


def _windows_per_dim(input_sizes: Sequence[Any], result_sizes: Sequence[Any]) -> list[Any]:
    """Return the matrix of `adaptive_positions` for each dim; None for a dim that keeps its size."""
    return [None if b == a else adaptive_positions(b, a) for b, a in zip(input_sizes, result_sizes, strict=True)]


def _reduces_or_keeps_each_dim(input_sizes: Sequence[Any], result_sizes: Sequence[Any]) -> bool:
    """Return whether each dim is pooled to size 1 or keeps its size."""
    return all(a in (1, b) for b, a in zip(input_sizes, result_sizes, strict=True))


def _equal_windows(input_sizes: Sequence[Any], result_sizes: Sequence[Any]) -> Windows | None:
    """Return windows of equal size, if each input size is a multiple of the result's size; else None."""
    if not all(
        isinstance(b, int) and isinstance(a, int) and a and b % a == 0
        for b, a in zip(input_sizes, result_sizes, strict=True)
    ):
        return None
    kernel = [b // a for b, a in zip(input_sizes, result_sizes, strict=True)]
    ones = [1] * len(kernel)
    return Windows(kernel, kernel, [0] * len(kernel), ones, list(input_sizes), list(result_sizes))


def _reduce_whole_dims(net: Net, x: ITensor, operation: trt.ReduceOperation, sizes: Sizes) -> ITensor:
    """Reduce each dim whose size changes by one window. ``sizes``: those of the input and of the result, in a pair."""
    first = base.rank(x) - len(sizes[0])
    dims = [first + i for i, (b, a) in enumerate(zip(*sizes, strict=True)) if b != a]
    if not dims:
        return x
    if operation == trt.ReduceOperation.MAX:
        return extremum(net, "MAX", x, dims, True)
    wide = base.cast(net, x, torch.float32)
    reduced = net.add("reduce", wide, operation, base.axes_mask(dims, base.rank(x)), True).get_output(0)
    return base.cast(net, reduced, base.dtype_of(x))


def _reduce_dynamic_dims(net: Net, x: ITensor, operation: trt.ReduceOperation, sizes: Sizes) -> tuple[ITensor, Sizes]:
    """Reduce the dynamic dims, which a single window covers; return the result, and the sizes of the remaining dims."""
    rows = [(1, 1, b, a) if not isinstance(b, int) and a == 1 else (b, a, 1, 1) for b, a in zip(*sizes, strict=True)]
    before, after, dynamic, one = ([row[i] for row in rows] for i in range(4))
    return _reduce_whole_dims(net, x, operation, (dynamic, one)), (before, after)


@converts(ADAPTIVE_AVERAGE, validator=check_pooled_dims)
def adaptive_avg_pool(net: Net, rank: int, input: Value) -> ITensor:
    """adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor; also for 1 and 3 dims (``rank``)"""
    x, sizes = base.tensor(net, input), _input_and_result_sizes(net.node, rank)
    if _reduces_or_keeps_each_dim(*sizes):
        return _reduce_whole_dims(net, x, trt.ReduceOperation.AVG, sizes)
    if (windows := _equal_windows(*sizes)) is not None:
        return pool.avg_pool(net, x, windows, False, None)
    wide = base.cast(net, x, torch.float32)
    wide, sizes = _reduce_dynamic_dims(net, wide, trt.ReduceOperation.AVG, sizes)
    return base.cast(net, gather_mean(net, wide, _windows_per_dim(*sizes)), base.dtype_of(x))


@converts(ADAPTIVE_MAX, validator=check_pooled_dims)
def adaptive_max_pool(net: Net, rank: int, input: Value) -> tuple[ITensor, ITensor | None]:
    """adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor); also for 1 and 3 dims (``rank``)"""
    x, sizes = base.tensor(net, input), _input_and_result_sizes(net.node, rank)
    if indices_are_read(net.node):
        places = [adaptive_positions(b, a) for b, a in zip(*sizes, strict=True)]
        return gather_argmax(net, x, places, sizes[0])
    if _reduces_or_keeps_each_dim(*sizes):
        return _reduce_whole_dims(net, x, trt.ReduceOperation.MAX, sizes), None
    if (windows := _equal_windows(*sizes)) is not None and base.dtype_of(x).is_floating_point:
        return pool.max_pool(net, x, windows), None
    x, sizes = _reduce_dynamic_dims(net, x, trt.ReduceOperation.MAX, sizes)
    return gather_max(net, x, _windows_per_dim(*sizes)), None
