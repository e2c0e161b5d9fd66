"""Quotients and remainders with eager's signs and roundings; integers exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.block_decorators import block
from pipeline.impl.elementwise import binary, is_number, layer, promoted, where, wide
from pipeline.impl.unary import absolute, is_negative, truncated
from pipeline.network.net import Net

HALF_OF_FLOAT = 4096.0
"""Half of the 24 bits of a float32."""

STEP = 24
"""The bits of a quotient that are exact in float32: multiples of the divisor are so many bits apart."""

LARGE = 2.0**100
"""Beyond it a multiple of the divisor that is rounded up may overflow. A divisor below ``2**-100`` beside it is
rounded."""


@block
def divide(net: Net, a: Value, b: Value, rounding_mode: str | None = None) -> ITensor:
    """The quotient: of integers a float32 unless it is rounded, by ``"floor"`` or ``"trunc"``."""
    dtype = base.result_type(a, b)
    if rounding_mode is None:
        return layer(net, "DIV", a, b, dtype if dtype.is_floating_point else torch.float32)
    if not dtype.is_floating_point:
        return binary(net, {"floor": "FLOOR_DIV", "trunc": "DIV"}[rounding_mode], a, b)
    x, y = promoted(net, a, b, dtype=wide(dtype))
    if rounding_mode == "floor":
        return base.cast(net, _floored(net, x, y, _steps(dtype, b)), dtype)
    return base.cast(net, truncated(net, base.elementwise(net, "DIV", x, y)), dtype)


@block
def floor_divide(net: Net, a: Value, b: Value) -> ITensor:
    """The quotient rounded down."""
    return divide(net, a, b, "floor")


@block
def fmod(net: Net, a: Value, b: Value) -> ITensor:
    """The remainder with the sign of ``a``."""
    dtype = base.result_type(a, b)
    x, y = _operands(net, a, b, dtype)
    if not dtype.is_floating_point:
        return _left(net, x, y, "DIV")
    return base.cast(net, _float_fmod(net, x, y, _steps(dtype, b)), dtype)


@block
def remainder(net: Net, a: Value, b: Value) -> ITensor:
    """The remainder with the sign of ``b``."""
    dtype = base.result_type(a, b)
    x, y = _operands(net, a, b, dtype)
    if not dtype.is_floating_point:
        return _left(net, x, y, "FLOOR_DIV")
    left = _float_fmod(net, x, y, _steps(dtype, b))
    wrapped = base.elementwise(net, "SUM", left, y)
    return base.cast(net, where(net, _signs_differ(net, left, y), wrapped, left), dtype)


def _operands(net: Net, a: Value, b: Value, dtype: torch.dtype) -> list[ITensor]:
    """Both in eager's common dtype, to which it rounds numbers as well, and then in float32 if they are halves."""
    return [base.cast(net, v, wide(dtype)) for v in promoted(net, a, b, dtype=dtype)]


def _steps(dtype: torch.dtype, divisor: Value) -> int:
    """How many multiples of a divisor the largest quotient takes."""
    info = torch.finfo(dtype)
    least = abs(divisor) if is_number(divisor) and info.tiny <= abs(divisor) <= info.max else info.tiny * info.eps
    return max(1, math.ceil(math.log2(info.max / least) / STEP))


def _left(net: Net, x: ITensor, y: ITensor, division: str) -> ITensor:
    whole = base.elementwise(net, "PROD", base.elementwise(net, division, x, y), y)
    return base.elementwise(net, "SUB", x, whole)


def _signs_differ(net: Net, left: ITensor, divisor: ITensor) -> ITensor:
    """Whether a remainder is not zero and on the other side of zero than the divisor."""
    signs = [base.unary(net, "SIGN", value) for value in (left, divisor)]
    return layer(net, "LESS", base.elementwise(net, "PROD", *signs), 0.0, base.dtype_of(left))


def _floored(net: Net, x: ITensor, y: ITensor, steps: int) -> ITensor:
    """``floor`` of the exact quotient, which the rounded one may have passed; by zero, the quotient itself."""
    quotient = base.elementwise(net, "DIV", x, y)
    left = _float_fmod(net, x, y, steps)
    whole = base.elementwise(net, "DIV", base.elementwise(net, "SUB", x, left), y)
    less = layer(net, "SUB", whole, 1.0, torch.float32)
    whole = where(net, _signs_differ(net, left, y), less, whole)
    zero = layer(net, "EQUAL", whole, 0.0, torch.float32)
    signed_zero = layer(net, "PROD", quotient, 0.0, torch.float32)
    result = where(net, zero, signed_zero, base.unary(net, "ROUND", whole))
    return where(net, layer(net, "EQUAL", y, 0.0, torch.float32), quotient, result)


def _float_fmod(net: Net, x: ITensor, y: ITensor, steps: int) -> ITensor:
    """Exact: multiples of large multiples of the divisor are taken away first. Beyond `LARGE` both are divided by 4, so
    that what rounds up does not overflow."""
    magnitude, divisor = absolute(net, x), absolute(net, y)
    large = layer(net, "GREATER", magnitude, LARGE, torch.float32)
    less, more = (where(net, large, factor, 1.0, torch.float32) for factor in (0.25, 4.0))
    left, divisor = (base.elementwise(net, "PROD", value, less) for value in (magnitude, divisor))
    scaled = [[divisor, *_thirds(net, divisor)]]
    for _ in range(steps - 1):
        scaled.append([layer(net, "PROD", part, 2.0**STEP, torch.float32) for part in scaled[-1]])
    for multiple, *parts in reversed(scaled):
        below = base.elementwise(net, "LESS", left, multiple)
        left = where(net, below, left, _rest(net, left, multiple, parts))
    left = base.elementwise(net, "PROD", left, more)
    return where(net, is_negative(net, x), base.unary(net, "NEG", left), left)


def _rest(net: Net, a: ITensor, b: ITensor, parts: Sequence[ITensor]) -> ITensor:
    """What is left of ``a`` by ``b``, both positive, the quotient below 2**24: the product of the quotient and the
    divisor's parts is taken away in parts that a float32 holds exactly."""
    times, left = base.unary(net, "ROUND", base.elementwise(net, "DIV", a, b)), a
    for part in parts:
        for factor in _halves(net, times):
            left = base.elementwise(net, "SUB", left, base.elementwise(net, "PROD", factor, part))
    below = layer(net, "LESS", left, 0.0, torch.float32)
    return where(net, below, base.elementwise(net, "SUM", left, b), left)


def _thirds(net: Net, x: ITensor) -> list[ITensor]:
    """Three numbers of 8 bits whose sum is ``x``, the largest first."""
    parts = []
    for _ in range(2):
        part = base.cast(net, base.cast(net, x, torch.bfloat16), torch.float32)
        parts.append(part)
        x = base.elementwise(net, "SUB", x, part)
    return [*parts, x]


def _halves(net: Net, x: ITensor) -> list[ITensor]:
    """Two whole numbers of 12 bits, the first times 4096, whose sum is ``x``."""
    scaled = base.unary(net, "ROUND", layer(net, "DIV", x, HALF_OF_FLOAT, torch.float32))
    high = layer(net, "PROD", scaled, HALF_OF_FLOAT, torch.float32)
    return [high, base.elementwise(net, "SUB", x, high)]
