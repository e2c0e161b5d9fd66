"""Add functions of one tensor."""

from __future__ import annotations

import math

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, Value, block
from pipeline.impl.elementwise import arithmetic_dtype, layer, logical_not, where, wide_dtype


@block
def to_floating(net: Net, x: Value) -> ITensor:
    """Convert integers and bools to float32; leave floats unchanged."""
    dtype = base.dtype_of(x)
    return base.tensor(net, x, dtype if dtype.is_floating_point else torch.float32)


@block
def to_float32(net: Net, x: Value) -> ITensor:
    """Cast a tensor to float32, for functions of several layers that round only once at the end, as in eager."""
    return base.tensor(net, x, torch.float32)


@block
def real(net: Net, operation: str, x: Value) -> ITensor:
    """Add the unary layer of a float function, such as "EXP" (`trt.UnaryOperation`); integers become float32 first."""
    return base.unary(net, operation, to_floating(net, x))


@block
def signed_function(net: Net, operation: str, x: Value) -> ITensor:
    """Return ``ABS``, ``NEG`` or ``SIGN`` of floats or integers."""
    dtype = base.dtype_of(x)
    result = base.unary(net, operation, base.tensor(net, x, arithmetic_dtype(dtype)))
    return base.cast(net, result, dtype)


@block
def sign(net: Net, x: Value) -> ITensor:
    """Return -1, 0 or 1 by the sign of each element; 0 for NaN, for which TensorRT's layer returns NaN."""
    result = signed_function(net, "SIGN", x)
    if not base.dtype_of(result).is_floating_point:
        return result
    return where(net, base.unary(net, "ISNAN", base.tensor(net, x)), 0.0, result, base.dtype_of(result))


@block
def is_negative(net: Net, x: ITensor) -> ITensor:
    """Return whether each float's sign bit is set, also for -0, which is recognized by its reciprocal, -inf."""
    below = layer(net, "LESS", x, 0.0, base.dtype_of(x))
    zero = layer(net, "LESS", base.unary(net, "RECIP", x), 0.0, base.dtype_of(x))
    return base.elementwise(net, "OR", below, zero)


@block
def rounding_function(net: Net, operation: str, x: Value) -> ITensor:
    """Return ``FLOOR``, ``CEIL`` or ``ROUND`` (ties to even) of floats; integers are unchanged."""
    x = base.tensor(net, x)
    return base.unary(net, operation, x) if base.dtype_of(x).is_floating_point else x


@block
def truncate(net: Net, x: Value) -> ITensor:
    """Round each element toward zero."""
    x = base.tensor(net, x)
    if not base.dtype_of(x).is_floating_point:
        return x
    below = layer(net, "LESS", x, 0.0, base.dtype_of(x))
    return where(net, below, base.unary(net, "CEIL", x), base.unary(net, "FLOOR", x))


@block
def rsqrt(net: Net, x: Value) -> ITensor:
    """Return ``1 / sqrt(x)``; half precision is computed in float32 and rounded once."""
    x = to_floating(net, x)
    dtype = base.dtype_of(x)
    root = base.unary(net, "SQRT", base.cast(net, x, wide_dtype(dtype)))
    return base.cast(net, base.unary(net, "RECIP", root), dtype)


@block
def logarithm(net: Net, base_: float, x: Value) -> ITensor:
    """Return the logarithm of ``x`` to the base ``base_``."""
    natural = base.unary(net, "LOG", to_float32(net, x))
    return layer(net, "PROD", natural, 1 / math.log(base_), torch.float32)


@block
def log1p(net: Net, x: Value) -> ITensor:
    """Return ``log(1 + x)``; near zero as ``2 atanh(x / (2 + x))``, since the sum would lose digits."""
    x = to_float32(net, x)
    ratio = base.elementwise(net, "DIV", x, layer(net, "SUM", x, 2.0, torch.float32))
    near = layer(net, "PROD", base.unary(net, "ATANH", ratio), 2.0, torch.float32)
    far = base.unary(net, "LOG", layer(net, "SUM", x, 1.0, torch.float32))
    return where(net, _is_near_zero(net, x, 0.5), near, far)


@block
def expm1(net: Net, x: Value) -> ITensor:
    """Return ``exp(x) - 1``; near zero as ``2 sinh(x / 2) exp(x / 2)``, since the difference would lose digits."""
    x = to_float32(net, x)
    half = layer(net, "PROD", x, 0.5, torch.float32)
    product = base.elementwise(net, "PROD", base.unary(net, "SINH", half), base.unary(net, "EXP", half))
    near = layer(net, "PROD", product, 2.0, torch.float32)
    far = layer(net, "SUB", base.unary(net, "EXP", x), 1.0, torch.float32)
    return where(net, _is_near_zero(net, x, 1.0), near, far)


def _is_near_zero(net: Net, x: ITensor, bound: float) -> ITensor:
    return layer(net, "LESS", base.unary(net, "ABS", x), bound, base.dtype_of(x))


@block
def is_nan_or_infinite(net: Net, operation: str, x: Value) -> ITensor:
    """Return ``ISNAN`` or ``ISINF`` of each element; False for integers."""
    x = base.tensor(net, x)
    if base.dtype_of(x).is_floating_point:
        return base.unary(net, operation, x)
    return logical_not(net, base.elementwise(net, "EQUAL", x, x))


@block
def atan2(net: Net, y: Value, x: Value) -> ITensor:
    """Return the angle of ``(x, y)``: the arctangent of the smaller over the larger coordinate, moved to its octant."""
    rank = max(base.rank(x), base.rank(y))
    a, b = (base.tensor(net, v, torch.float32, rank=rank) for v in (x, y))
    width, height = base.unary(net, "ABS", a), base.unary(net, "ABS", b)
    steep = base.elementwise(net, "GREATER", height, width)
    small, large = where(net, steep, width, height), where(net, steep, height, width)
    same = base.elementwise(net, "EQUAL", height, width)  # both zero, or both infinite
    ratio = base.elementwise(net, "DIV", small, large)
    ratio = where(net, same, base.unary(net, "SIGN", width), ratio)
    angle = base.unary(net, "ATAN", ratio)
    angle = where(net, steep, layer(net, "SUB", math.pi / 2, angle, torch.float32), angle)
    left = layer(net, "SUB", math.pi, angle, torch.float32)
    angle = where(net, is_negative(net, a), left, angle)
    return where(net, is_negative(net, b), base.unary(net, "NEG", angle), angle)


@block
def round_decimals(net: Net, x: Value, decimals: int) -> ITensor:
    """Round to a number of decimals, ties to even; a negative number rounds digits before the decimal point."""
    scale = 10.0 ** abs(decimals)
    before, after = ("PROD", "DIV") if decimals > 0 else ("DIV", "PROD")
    moved = layer(net, before, to_float32(net, x), scale, torch.float32)
    return layer(net, after, base.unary(net, "ROUND", moved), scale, torch.float32)
