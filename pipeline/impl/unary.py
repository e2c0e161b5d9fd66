"""Functions of one tensor."""

from __future__ import annotations

import math

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.elementwise import arithmetic, is_nan, layer, logical_not, where, wide
from pipeline.network.context import ConversionContext


def floating(ctx: ConversionContext, name: str, x: Value) -> ITensor:
    """``x`` as floats: integers and bools as float32."""
    dtype = base.dtype_of(x)
    return base.tensor(ctx, name, x, dtype if dtype.is_floating_point else torch.float32)


def widened(ctx: ConversionContext, name: str, x: Value) -> ITensor:
    """``x`` as float32, for functions of several layers: they round once at the end, as eager does."""
    return base.tensor(ctx, name, x, torch.float32)


def real(ctx: ConversionContext, name: str, operation: str, x: Value) -> ITensor:
    """A function of real numbers; of integers it is a float."""
    return base.unary(ctx, name, operation, floating(ctx, name, x))


def signed(ctx: ConversionContext, name: str, operation: str, x: Value) -> ITensor:
    """``ABS``, ``NEG`` or ``SIGN``, of integers as well."""
    dtype = base.dtype_of(x)
    result = base.unary(ctx, name, operation, base.tensor(ctx, name, x, arithmetic(dtype)))
    return base.cast(ctx, name, result, dtype)


def sign(ctx: ConversionContext, name: str, x: Value) -> ITensor:
    """-1, 0 or 1; 0 for NaN, which TensorRT's layer keeps."""
    result = signed(ctx, name, "SIGN", x)
    if not base.dtype_of(result).is_floating_point:
        return result
    return where(ctx, name, is_nan(ctx, name, base.tensor(ctx, name, x)), 0.0, result, base.dtype_of(result))


def absolute(ctx: ConversionContext, name: str, x: ITensor) -> ITensor:
    """``|x|``."""
    return base.unary(ctx, name, "ABS", x)


def is_negative(ctx: ConversionContext, name: str, x: ITensor) -> ITensor:
    """Whether a float has the sign bit; the reciprocal tells it of -0."""
    below = layer(ctx, name, "LESS", x, 0.0, base.dtype_of(x))
    zero = layer(ctx, name, "LESS", base.unary(ctx, name, "RECIP", x), 0.0, base.dtype_of(x))
    return base.elementwise(ctx, name, "OR", below, zero)


def rounded(ctx: ConversionContext, name: str, operation: str, x: Value) -> ITensor:
    """``FLOOR``, ``CEIL`` or ``ROUND`` (halves to even); integers are what they are."""
    x = base.tensor(ctx, name, x)
    return base.unary(ctx, name, operation, x) if base.dtype_of(x).is_floating_point else x


def truncated(ctx: ConversionContext, name: str, x: Value) -> ITensor:
    """Rounded toward zero."""
    x = base.tensor(ctx, name, x)
    if not base.dtype_of(x).is_floating_point:
        return x
    below = layer(ctx, name, "LESS", x, 0.0, base.dtype_of(x))
    return where(ctx, name, below, base.unary(ctx, name, "CEIL", x), base.unary(ctx, name, "FLOOR", x))


def rsqrt(ctx: ConversionContext, name: str, x: Value) -> ITensor:
    """``1 / sqrt(x)``, in float32 for halves, rounded once."""
    x = floating(ctx, name, x)
    dtype = base.dtype_of(x)
    root = base.unary(ctx, name, "SQRT", base.cast(ctx, name, x, wide(dtype)))
    return base.cast(ctx, name, base.unary(ctx, name, "RECIP", root), dtype)


def logarithm(ctx: ConversionContext, name: str, base_: float, x: Value) -> ITensor:
    """The logarithm to a base."""
    natural = base.unary(ctx, name, "LOG", widened(ctx, name, x))
    return layer(ctx, name, "PROD", natural, 1 / math.log(base_), torch.float32)


def log1p(ctx: ConversionContext, name: str, x: Value) -> ITensor:
    """``log(1 + x)``: near zero ``2 atanh(x / (2 + x))``, where the sum would lose digits."""
    x = widened(ctx, name, x)
    ratio = base.elementwise(ctx, name, "DIV", x, layer(ctx, name, "SUM", x, 2.0, torch.float32))
    near = layer(ctx, name, "PROD", base.unary(ctx, name, "ATANH", ratio), 2.0, torch.float32)
    far = base.unary(ctx, name, "LOG", layer(ctx, name, "SUM", x, 1.0, torch.float32))
    return where(ctx, name, _below(ctx, name, x, 0.5), near, far)


def expm1(ctx: ConversionContext, name: str, x: Value) -> ITensor:
    """``exp(x) - 1``: near zero ``2 sinh(x / 2) exp(x / 2)``, where the difference would lose digits."""
    x = widened(ctx, name, x)
    half = layer(ctx, name, "PROD", x, 0.5, torch.float32)
    product = base.elementwise(
        ctx, name, "PROD", base.unary(ctx, name, "SINH", half), base.unary(ctx, name, "EXP", half)
    )
    near = layer(ctx, name, "PROD", product, 2.0, torch.float32)
    far = layer(ctx, name, "SUB", base.unary(ctx, name, "EXP", x), 1.0, torch.float32)
    return where(ctx, name, _below(ctx, name, x, 1.0), near, far)


def _below(ctx: ConversionContext, name: str, x: ITensor, bound: float) -> ITensor:
    return layer(ctx, name, "LESS", absolute(ctx, name, x), bound, base.dtype_of(x))


def kind_of_number(ctx: ConversionContext, name: str, operation: str, x: Value) -> ITensor:
    """``ISNAN`` or ``ISINF``; integers are neither."""
    x = base.tensor(ctx, name, x)
    if base.dtype_of(x).is_floating_point:
        return base.unary(ctx, name, operation, x)
    return logical_not(ctx, name, base.elementwise(ctx, name, "EQUAL", x, x))


def atan2(ctx: ConversionContext, name: str, y: Value, x: Value) -> ITensor:
    """The angle of the point ``(x, y)``: of the smaller side over the larger, then moved to its octant."""
    rank = max(base.rank(x), base.rank(y))
    a, b = (base.tensor(ctx, name, v, torch.float32, rank=rank) for v in (x, y))
    width, height = absolute(ctx, name, a), absolute(ctx, name, b)
    steep = base.elementwise(ctx, name, "GREATER", height, width)
    small, large = where(ctx, name, steep, width, height), where(ctx, name, steep, height, width)
    same = base.elementwise(ctx, name, "EQUAL", height, width)  # both zero, or both infinite
    ratio = base.elementwise(ctx, name, "DIV", small, large)
    ratio = where(ctx, name, same, base.unary(ctx, name, "SIGN", width), ratio)
    angle = base.unary(ctx, name, "ATAN", ratio)
    angle = where(ctx, name, steep, layer(ctx, name, "SUB", math.pi / 2, angle, torch.float32), angle)
    left = layer(ctx, name, "SUB", math.pi, angle, torch.float32)
    angle = where(ctx, name, is_negative(ctx, name, a), left, angle)
    return where(ctx, name, is_negative(ctx, name, b), base.unary(ctx, name, "NEG", angle), angle)


def round_to(ctx: ConversionContext, name: str, x: Value, decimals: int) -> ITensor:
    """Rounded to so many decimals, halves to even; before the point where they are negative."""
    scale = 10.0 ** abs(decimals)
    before, after = ("PROD", "DIV") if decimals > 0 else ("DIV", "PROD")
    moved = layer(ctx, name, before, widened(ctx, name, x), scale, torch.float32)
    return layer(ctx, name, after, base.unary(ctx, name, "ROUND", moved), scale, torch.float32)
