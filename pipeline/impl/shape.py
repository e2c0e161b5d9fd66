"""Create tensors from sizes and numbers, compute with sizes, and add layers that concatenate, repeat and slice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, Size, SymbolicInt, Value, block, network_query
from pipeline.shapes.environment import bounds, shape_of
from pipeline.trt import to_trt, trt


@block
def full(net: Net, shape: Sequence[Size], value: Value, dtype: torch.dtype) -> ITensor:
    """Return a tensor of a shape in which every element is ``value``."""
    return base.expand(net, base.tensor(net, value, dtype), shape)


@block
def arange(net: Net, start: Value, step: Value, length: Size, dtype: torch.dtype) -> ITensor:
    """Return ``start + i * step`` for each i below ``length``, in ``dtype``; TensorRT computes float32 or integers."""
    other = torch.float32 if dtype.is_floating_point else torch.int32
    compute = dtype if dtype in (torch.int32, torch.int64) else other
    layer = net.add("fill", (1,), trt.FillOperation.LINSPACE, to_trt(compute))
    layer.set_input(0, base.size_tensor(net, length))
    layer.set_input(1, base.tensor(net, start, compute))
    layer.set_input(2, base.tensor(net, step, compute, rank=1))
    return base.cast(net, layer.get_output(0), dtype)


def sizes_of(fake_tensor: torch.Tensor) -> list[Size]:
    """Return the sizes of a fake tensor, as ints or as ``SymbolicInt``s if dynamic."""
    return [s if isinstance(s, int) else SymbolicInt(s) for s in shape_of(fake_tensor)]


@network_query
def result_sizes(net: Net) -> list[Size]:
    """Return the sizes of the current node's result; of the first result if there are several."""
    assert net.node is not None
    value = net.node.meta["val"]
    return sizes_of(value if isinstance(value, torch.Tensor) else value[0])


def expression(size: Size) -> Any:
    """Return a size as a sympy expression."""
    return size.expr if isinstance(size, SymbolicInt) else sympy.Integer(size)


def as_size(expr: Any) -> Size:
    """Convert an expression to a size: an int if it is constant, else a ``SymbolicInt``."""
    return int(expr) if expr.is_number else SymbolicInt(expr)


def size_product(sizes: Sequence[Size]) -> Size:
    """Return the product of sizes as a size."""
    return as_size(sympy.Mul(*map(expression, sizes)))


def size_sum(sizes: Sequence[Size]) -> Size:
    """Return the sum of sizes as a size."""
    return as_size(sympy.Add(*map(expression, sizes)))


def negate(size: Size) -> Size:
    return as_size(-expression(size))


@network_query
def bounds_of(net: Net, expr: Any) -> tuple[float, float]:
    """Return the smallest and largest value of a size expression; infinite if a symbol has no bound."""
    if expr.is_number:
        return int(expr), int(expr)
    if any(str(symbol) not in net.ctx.ranges for symbol in expr.free_symbols):
        return -math.inf, math.inf
    found = bounds(expr, net.ctx.ranges)
    return found.min, found.max


@block
def concatenate(net: Net, tensors: Sequence[Value], dim: int, dtype: torch.dtype) -> ITensor:
    """Concatenate tensors along a dim, after casting them to ``dtype``; a single tensor is not copied."""
    parts = [base.tensor(net, t, dtype) for t in tensors]
    if len(parts) == 1:
        return parts[0]
    layer = net.add("concatenation", parts)
    layer.axis = base.axis(dim, base.rank(parts[0]))
    return layer.get_output(0)


@block
def repeat(net: Net, x: ITensor, repeats: Sequence[Size], shape: Sequence[Size]) -> ITensor:
    """Repeat ``x`` along each dim to the result's ``shape``, by a slice that wraps around; both have the same rank."""
    known = base.known_sizes(net, x)
    axes = [i for i, r in enumerate(repeats) if r != 1]
    if all(known[i] == 1 for i in axes):
        return base.expand(net, x, shape)
    if any(s == 0 for s in shape):
        return base.expand(net, base.tensor(net, 0, base.dtype_of(x)), shape)
    return strided_slice(net, x, axes, [0] * len(axes), [shape[i] for i in axes], mode="WRAP")


@block
def strided_slice(
    net: Net,
    x: ITensor,
    axes: Sequence[int],
    start: Sequence[Size],
    sizes: Sequence[Size],
    *,
    stride: Sequence[Size] | None = None,
    mode: str = "STRICT_BOUNDS",
    fill: ITensor | None = None,
) -> ITensor:
    """Slice a tensor along axes; ``mode`` (of ``trt.SampleMode``) determines the elements outside of the tensor."""
    given = [start, sizes, [1] * len(axes) if stride is None else stride]
    plain = [all(isinstance(v, int) for v in values) for values in given]
    layer = net.add("slice", x, *(tuple(v) if p else (0,) * len(axes) for v, p in zip(given, plain, strict=True)))
    for i, (values, static) in enumerate(zip(given, plain, strict=True), 1):
        if not static:
            layer.set_input(i, base.shape_tensor(net, values))
    layer.axes = tuple(axes)
    layer.mode = trt.SampleMode.__members__[mode]
    if fill is not None:
        layer.set_input(4, fill)
    result = list(base.known_sizes(net, x))
    for a, s in zip(axes, sizes, strict=True):
        result[a] = s
    return base.with_sizes(net, layer.get_output(0), result)
