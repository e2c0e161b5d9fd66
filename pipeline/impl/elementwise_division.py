"""Quotients and remainders with eager's signs and roundings; integers exactly."""

from __future__ import annotations

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.elementwise import binary, layer, promoted, where, wide
from pipeline.impl.unary import absolute, is_negative, truncated
from pipeline.network.context import ConversionContext

HALF_OF_FLOAT = 4096.0
"""Half of the 24 bits of a float32."""

MULTIPLES = (2.0**48, 2.0**24, 1)
"""Of the divisor, each as far below the one before as a float32's quotient is exact."""


def divide(ctx: ConversionContext, name: str, a: Value, b: Value, rounding_mode: str | None = None) -> ITensor:
    """The quotient: of integers a float32 unless it is rounded, by ``"floor"`` or ``"trunc"``."""
    dtype = base.result_type(a, b)
    if rounding_mode is None:
        return layer(ctx, name, "DIV", a, b, dtype if dtype.is_floating_point else torch.float32)
    if not dtype.is_floating_point:
        return binary(ctx, name, {"floor": "FLOOR_DIV", "trunc": "DIV"}[rounding_mode], a, b)
    x, y = promoted(ctx, name, a, b, dtype=wide(dtype))
    if rounding_mode == "floor":
        return base.cast(ctx, name, _floored(ctx, name, x, y), dtype)
    return base.cast(ctx, name, truncated(ctx, name, base.elementwise(ctx, name, "DIV", x, y)), dtype)


def floor_divide(ctx: ConversionContext, name: str, a: Value, b: Value) -> ITensor:
    """The quotient rounded down."""
    return divide(ctx, name, a, b, "floor")


def fmod(ctx: ConversionContext, name: str, a: Value, b: Value) -> ITensor:
    """What is left of ``a``, with its sign."""
    dtype = base.result_type(a, b)
    if dtype.is_floating_point:
        x, y = promoted(ctx, name, a, b, dtype=wide(dtype))
        return base.cast(ctx, name, _float_fmod(ctx, name, x, y), dtype)
    x, y = promoted(ctx, name, a, b, dtype=dtype)
    return _left(ctx, name, x, y, "DIV")


def remainder(ctx: ConversionContext, name: str, a: Value, b: Value) -> ITensor:
    """What is left of ``a``, with the sign of ``b``."""
    dtype = base.result_type(a, b)
    x, y = promoted(ctx, name, a, b, dtype=wide(dtype))
    if not dtype.is_floating_point:
        return _left(ctx, name, x, y, "FLOOR_DIV")
    left = _float_fmod(ctx, name, x, y)
    wrapped = base.elementwise(ctx, name, "SUM", left, y)
    return base.cast(ctx, name, where(ctx, name, _signs_differ(ctx, name, left, y), wrapped, left), dtype)


def _left(ctx: ConversionContext, name: str, x: ITensor, y: ITensor, division: str) -> ITensor:
    whole = base.elementwise(ctx, name, "PROD", base.elementwise(ctx, name, division, x, y), y)
    return base.elementwise(ctx, name, "SUB", x, whole)


def _signs_differ(ctx: ConversionContext, name: str, left: ITensor, divisor: ITensor) -> ITensor:
    """Whether a remainder is not zero and on the other side of zero than the divisor."""
    signs = [base.unary(ctx, name, "SIGN", value) for value in (left, divisor)]
    return layer(ctx, name, "LESS", base.elementwise(ctx, name, "PROD", *signs), 0.0, base.dtype_of(left))


def _floored(ctx: ConversionContext, name: str, x: ITensor, y: ITensor) -> ITensor:
    """``floor`` of the exact quotient, which the rounded one may have passed; by zero, the quotient itself."""
    quotient = base.elementwise(ctx, name, "DIV", x, y)
    left = _float_fmod(ctx, name, x, y)
    whole = base.elementwise(ctx, name, "DIV", base.elementwise(ctx, name, "SUB", x, left), y)
    less = layer(ctx, name, "SUB", whole, 1.0, torch.float32)
    whole = where(ctx, name, _signs_differ(ctx, name, left, y), less, whole)
    zero = layer(ctx, name, "EQUAL", whole, 0.0, torch.float32)
    signed_zero = layer(ctx, name, "PROD", quotient, 0.0, torch.float32)
    result = where(ctx, name, zero, signed_zero, base.unary(ctx, name, "ROUND", whole))
    return where(ctx, name, layer(ctx, name, "EQUAL", y, 0.0, torch.float32), quotient, result)


def _float_fmod(ctx: ConversionContext, name: str, x: ITensor, y: ITensor) -> ITensor:
    """Exact where the quotient is below 2**72: multiples of large multiples of the divisor are taken away first."""
    left, divisor = absolute(ctx, name, x), absolute(ctx, name, y)
    for multiple in MULTIPLES:
        scaled = divisor if multiple == 1 else layer(ctx, name, "PROD", divisor, multiple, torch.float32)
        less = base.elementwise(ctx, name, "LESS", left, scaled)
        left = where(ctx, name, less, left, _rest(ctx, name, left, scaled))
    return where(ctx, name, is_negative(ctx, name, x), base.unary(ctx, name, "NEG", left), left)


def _rest(ctx: ConversionContext, name: str, a: ITensor, b: ITensor) -> ITensor:
    """What is left of ``a`` by ``b``, both positive, the quotient below 2**24: the product of quotient and divisor is
    taken away in parts that a float32 holds exactly."""
    times, left = base.unary(ctx, name, "ROUND", base.elementwise(ctx, name, "DIV", a, b)), a
    for part in _thirds(ctx, name, b):
        for factor in _halves(ctx, name, times):
            left = base.elementwise(ctx, name, "SUB", left, base.elementwise(ctx, name, "PROD", factor, part))
    below = layer(ctx, name, "LESS", left, 0.0, torch.float32)
    return where(ctx, name, below, base.elementwise(ctx, name, "SUM", left, b), left)


def _thirds(ctx: ConversionContext, name: str, x: ITensor) -> list[ITensor]:
    """Three numbers of 8 bits whose sum is ``x``, the largest first."""
    parts = []
    for _ in range(2):
        part = base.cast(ctx, name, base.cast(ctx, name, x, torch.bfloat16), torch.float32)
        parts.append(part)
        x = base.elementwise(ctx, name, "SUB", x, part)
    return [*parts, x]


def _halves(ctx: ConversionContext, name: str, x: ITensor) -> list[ITensor]:
    """Two whole numbers of 12 bits, the first times 4096, whose sum is ``x``."""
    scaled = base.unary(ctx, name, "ROUND", layer(ctx, name, "DIV", x, HALF_OF_FLOAT, torch.float32))
    high = layer(ctx, name, "PROD", scaled, HALF_OF_FLOAT, torch.float32)
    return [high, base.elementwise(ctx, name, "SUB", x, high)]
