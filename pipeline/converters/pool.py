"""Convert pooling with windows of one size."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from pipeline.aten.arguments import argument
from pipeline.aten.types import aten
from pipeline.converters.binding import converts
from pipeline.converters.declare import Rejection
from pipeline.impl import base, pool
from pipeline.impl.base import ITensor, Value
from pipeline.impl.pool import gathered_argmax, gathered_max
from pipeline.impl.pool_windows import Windows
from pipeline.impl.reduce import all_dims, reduce
from pipeline.network.net import Net
from pipeline.settings import CompilationSettings

MAX: dict[Any, int] = {
    aten.max_pool1d.default: 1,
    aten.max_pool2d.default: 2,
    aten.max_pool3d.default: 3,
    aten.max_pool2d_with_indices.default: 2,
    aten.max_pool3d_with_indices.default: 3,
}
AVERAGE: dict[Any, int] = {aten.avg_pool1d.default: 1, aten.avg_pool2d.default: 2, aten.avg_pool3d.default: 3}


def _windows(node: torch.fx.Node, rank: int) -> Windows:
    """Return the windows of a pooling node, clipped to the input and its padding, since TensorRT limits them. Their
    number is rounded up only if that makes a difference."""

    def each(name: str, default: list[int]) -> list[int]:
        value = list(argument(node, name)) or default
        return value * (rank if len(value) == 1 else 1)

    made = node.meta["val"]
    result = made if isinstance(made, torch.Tensor) else made[0]
    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    kernel = each("kernel_size", [])
    shape, stride = argument(node, "self").meta["val"].shape[-rank:], each("stride", kernel)
    sizes = [_known(s) for s in shape]
    padding, dilation = each("padding", [0]), each("dilation", [1]) if "dilation" in names else [1] * rank
    rows = zip(kernel, sizes, padding, dilation, strict=True)
    ends = (s + 2 * p - d * (k - 1) - 1 for k, s, p, d in zip(kernel, shape, padding, dilation, strict=True))
    even = all(statically_known_true(end % step == 0) for end, step in zip(ends, stride, strict=True))
    return Windows(
        [min(k, s + 2 * p) if s and d == 1 else k for k, s, p, d in rows],
        stride,
        padding,
        dilation,
        sizes,
        [_known(s) for s in result.shape[-rank:]],
        bool(argument(node, "ceil_mode")) and not even,
    )


def _known(size: int | torch.SymInt) -> int | None:
    return size if isinstance(size, int) else None


def _dynamic(node: torch.fx.Node, why: str) -> Rejection:
    """Return the rejection that names the dim whose size must be static."""
    shape = argument(node, "self").meta["val"].shape
    dim = next(i for i, s in reversed(list(enumerate(shape))) if isinstance(s, torch.SymInt))
    return Rejection(f"dim {dim} of the input is {shape[dim]}; {why} needs static sizes")


def _rounds_safely(windows: Windows) -> bool:
    """Return whether rounding up never creates a window beyond the input, which eager would omit."""
    rows = zip(windows.kernel, windows.stride, windows.padding, windows.dilation, strict=True)
    return all(d * (k - 1) + 1 >= s + p for k, s, p, d in rows)


def _max_limits(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """TensorRT's layer has no dilation, integers or indices: those are gathered, which needs static sizes."""
    windows = _windows(node, MAX[node.target])
    if windows.static:
        return True
    if max(windows.dilation) > 1:
        return _dynamic(node, "dilated pooling")
    if not argument(node, "self").meta["val"].is_floating_point():
        return _dynamic(node, "pooling of integers")
    if indices_are_read(node):
        return _dynamic(node, "pooling with indices")
    return not windows.ceil_mode or _rounds_safely(windows) or _dynamic(node, "this ceil_mode")


@converts(MAX, validator=_max_limits)
def max_pool(net: Net, rank: int, input: Value) -> ITensor:
    """max_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1,
    bool ceil_mode=False) -> Tensor"""
    windows, x = _windows(net.node, rank), base.tensor(net, input)
    if indices_are_read(net.node):
        return gathered_argmax(net, x, windows.places(), [s or 0 for s in windows.sizes])
    if max(windows.dilation) > 1 or not base.dtype_of(x).is_floating_point:
        result = gathered_max(net, x, windows.places())
    else:
        result = pool.max_pool(net, x, windows)
    return result if isinstance(net.node.meta["val"], torch.Tensor) else (result, None)


def indices_are_read(node: torch.fx.Node) -> bool:
    """Return whether max pooling returns indices that something reads."""
    given = not isinstance(node.meta["val"], torch.Tensor)
    return given and any(u.op == "output" or u.args[1] == 1 for u in node.users)


def _takes_all(node: torch.fx.Node, windows: Windows) -> bool:
    """Return whether each dim has a single window that covers it, for any size in its range."""
    sizes = argument(node, "self").meta["val"].shape[-len(windows.kernel) :]
    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    divided = "divisor_override" in names and argument(node, "divisor_override") is not None
    return not (divided or any(windows.padding)) and all(
        statically_known_true(size <= k) for size, k in zip(sizes, windows.kernel, strict=True)
    )


def _average_limits(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """TensorRT averages floating-point tensors, and rounds the number of windows up for static sizes only, unless
    there is one window for everything."""
    x = argument(node, "self").meta["val"]
    if not x.is_floating_point():
        return Rejection(f"the input is {x.dtype}, TensorRT averages floating-point tensors only")
    windows = _windows(node, AVERAGE[node.target])
    if not windows.rounds_up or _takes_all(node, windows):
        return True
    return _dynamic(node, "averaging with ceil_mode, which RTX 1.4 builds and then refuses to run at some sizes,")


@converts(AVERAGE, validator=_average_limits)
def avg_pool(
    net: Net, rank: int, input: Value, count_include_pad: bool, divisor_override: int | None = None
) -> ITensor:
    """avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False,
    bool count_include_pad=True, int? divisor_override=None) -> Tensor"""
    x, windows = base.tensor(net, input), _windows(net.node, rank)
    if windows.rounds_up and _takes_all(net.node, windows):
        wide = base.cast(net, x, torch.float32)
        mean = reduce(net, "AVG", wide, all_dims(range(-rank, 0), base.rank(x)), keepdim=True)
        return base.cast(net, mean, base.dtype_of(x))
    return pool.avg_pool(net, x, windows, count_include_pad, divisor_override)
