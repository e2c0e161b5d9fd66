"""Add powers, quotients and remainders with eager's signs and rounding, and bitwise operations.
Integer results are exact; powers with small integer exponents are repeated multiplications. Bitwise operations of bools
are logic layers, of integers a table of the results for pairs of 4-bit digits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, Value, block
from pipeline.impl.elementwise import arithmetic_dtype, binary, is_number, layer, logical, promote, where, wide_dtype
from pipeline.impl.unary import is_negative, truncate
from pipeline.trt import trt

LARGEST_PRODUCT = 64
ONE_LAYER = (1, 2, 0.5, -1)
"""Exponents for which one layer, which rounds once, computes the power."""


@block
def power(net: Net, a: Value, b: Value) -> ITensor:
    """Return ``a ** b`` in the promoted dtype; half precision is computed in float32 and rounded once."""
    dtype = base.result_type(a, b)
    compute = arithmetic_dtype(dtype) if is_number(b) and b in ONE_LAYER else wide_dtype(arithmetic_dtype(dtype))
    known = is_number(b)
    result = _constant_power(net, base.tensor(net, a, compute), b) if known else _power_by_layer(net, a, b, compute)
    return base.cast(net, result, dtype)


def _power_by_layer(net: Net, a: Value, b: Value, dtype: torch.dtype) -> ITensor:
    """Compute a power by a layer. Negative powers of integers are set to 0 (except of 1 and -1): TensorRT is wrong."""
    if dtype.is_floating_point:
        return layer(net, "POW", a, b, dtype)
    x, y = promote(net, a, b, dtype=dtype)
    result = base.elementwise(net, "POW", x, base.unary(net, "ABS", y))
    if is_number(a) and abs(a) == 1:
        return result
    fraction: Value = 0
    if not is_number(a):
        unit = layer(net, "EQUAL", base.unary(net, "ABS", x), 1, dtype)
        fraction = where(net, unit, result, 0, dtype)
    return where(net, layer(net, "LESS", y, 0, dtype), fraction, result, dtype)


def _constant_power(net: Net, x: ITensor, exponent: float) -> ITensor:
    """Return a power for a constant exponent, with eager's special cases; multiply repeatedly for integer exponents."""
    dtype = base.dtype_of(x)
    if exponent in (0.5, -0.5):
        root = base.unary(net, "SQRT", x)
        return root if exponent > 0 else base.unary(net, "RECIP", root)
    if exponent in (1, 2, 3) or (not dtype.is_floating_point and 0 < exponent <= LARGEST_PRODUCT):
        return _integer_power(net, x, int(exponent))
    if exponent in (-1, -2) and dtype.is_floating_point:
        return base.unary(net, "RECIP", _integer_power(net, x, -int(exponent)))
    return layer(net, "POW", x, exponent, dtype)


def _integer_power(net: Net, x: ITensor, exponent: int) -> ITensor:
    """Return an integer power by repeated squaring."""
    if exponent == 1:
        return x
    half = _integer_power(net, x, exponent // 2)
    square = base.elementwise(net, "PROD", half, half)
    return square if exponent % 2 == 0 else base.elementwise(net, "PROD", square, x)


HALF_OF_FLOAT = 4096.0
"""A divisor that splits the 24 significant bits of a float32 into two halves."""

STEP = 24
"""The number of bits of a quotient that float32 represents exactly; each step of a division computes that many."""

LARGE = 2.0**100
"""The magnitude above which operands are scaled down, since a rounded multiple of the divisor may overflow. A divisor
below ``2**-100`` is then rounded."""


@block
def divide(net: Net, a: Value, b: Value, rounding_mode: str | None = None) -> ITensor:
    """Divide ``a`` by ``b``. Quotients of integers are float32 unless rounded by ``"floor"`` or ``"trunc"``."""
    dtype = base.result_type(a, b)
    if rounding_mode is None:
        return layer(net, "DIV", a, b, dtype if dtype.is_floating_point else torch.float32)
    if not dtype.is_floating_point:
        return binary(net, {"floor": "FLOOR_DIV", "trunc": "DIV"}[rounding_mode], a, b)
    x, y = promote(net, a, b, dtype=wide_dtype(dtype))
    if rounding_mode == "floor":
        return base.cast(net, _exact_floor_division(net, x, y, _division_steps(dtype, b)), dtype)
    return base.cast(net, truncate(net, base.elementwise(net, "DIV", x, y)), dtype)


@block
def floor_divide(net: Net, a: Value, b: Value) -> ITensor:
    return divide(net, a, b, "floor")


@block
def fmod(net: Net, a: Value, b: Value) -> ITensor:
    """Return the remainder of ``a / b`` with the sign of ``a``."""
    dtype = base.result_type(a, b)
    x, y = _promote_operands(net, a, b, dtype)
    if not dtype.is_floating_point:
        return _integer_remainder(net, x, y, "DIV")
    return base.cast(net, _float_fmod(net, x, y, _division_steps(dtype, b)), dtype)


@block
def remainder(net: Net, a: Value, b: Value) -> ITensor:
    """Return the remainder of ``a / b`` with the sign of ``b``."""
    dtype = base.result_type(a, b)
    x, y = _promote_operands(net, a, b, dtype)
    if not dtype.is_floating_point:
        return _integer_remainder(net, x, y, "FLOOR_DIV")
    left = _float_fmod(net, x, y, _division_steps(dtype, b))
    wrapped = base.elementwise(net, "SUM", left, y)
    return base.cast(net, where(net, _signs_differ(net, left, y), wrapped, left), dtype)


def _promote_operands(net: Net, a: Value, b: Value, dtype: torch.dtype) -> list[ITensor]:
    """Cast both operands to the promoted dtype, then half precision to float32."""
    return [base.cast(net, v, wide_dtype(dtype)) for v in promote(net, a, b, dtype=dtype)]


def _division_steps(dtype: torch.dtype, divisor: Value) -> int:
    """Return the number of division steps that `_float_fmod` needs for the largest possible quotient."""
    info = torch.finfo(dtype)
    least = abs(divisor) if is_number(divisor) and info.tiny <= abs(divisor) <= info.max else info.tiny * info.eps
    return max(1, math.ceil(math.log2(info.max / least) / STEP))


def _integer_remainder(net: Net, x: ITensor, y: ITensor, division_operation: str) -> ITensor:
    """Return ``x - (x / y) * y``, where ``division_operation`` rounds: "DIV" towards zero, "FLOOR_DIV" down."""
    multiple = base.elementwise(net, "PROD", base.elementwise(net, division_operation, x, y), y)
    return base.elementwise(net, "SUB", x, multiple)


def _signs_differ(net: Net, rest: ITensor, divisor: ITensor) -> ITensor:
    """Return whether a nonzero remainder and the divisor have different signs."""
    signs = [base.unary(net, "SIGN", value) for value in (rest, divisor)]
    return layer(net, "LESS", base.elementwise(net, "PROD", *signs), 0.0, base.dtype_of(rest))


def _exact_floor_division(net: Net, x: ITensor, y: ITensor, steps: int) -> ITensor:
    """Return the floor of the exact quotient; ``x / y`` where the divisor is 0. ``steps``: see `_division_steps`."""
    quotient = base.elementwise(net, "DIV", x, y)
    left = _float_fmod(net, x, y, steps)
    floor = base.elementwise(net, "DIV", base.elementwise(net, "SUB", x, left), y)
    less = layer(net, "SUB", floor, 1.0, torch.float32)
    floor = where(net, _signs_differ(net, left, y), less, floor)
    zero = layer(net, "EQUAL", floor, 0.0, torch.float32)
    signed_zero = layer(net, "PROD", quotient, 0.0, torch.float32)
    result = where(net, zero, signed_zero, base.unary(net, "ROUND", floor))
    return where(net, layer(net, "EQUAL", y, 0.0, torch.float32), quotient, result)


def _float_fmod(net: Net, x: ITensor, y: ITensor, steps: int) -> ITensor:
    """Return the exact remainder of ``x / y`` by long division: subtract multiples of ``y * 2**(STEP * i)``, from i =
    ``steps - 1`` to 0. If x is above `LARGE`, both are divided by 4 meanwhile, so that rounding up cannot overflow."""
    magnitude, divisor = base.unary(net, "ABS", x), base.unary(net, "ABS", y)
    large = layer(net, "GREATER", magnitude, LARGE, torch.float32)
    less, more = (where(net, large, factor, 1.0, torch.float32) for factor in (0.25, 4.0))
    left, divisor = (base.elementwise(net, "PROD", value, less) for value in (magnitude, divisor))
    scaled = [[divisor, *_split_in_three(net, divisor)]]
    for _ in range(steps - 1):
        scaled.append([layer(net, "PROD", part, 2.0**STEP, torch.float32) for part in scaled[-1]])
    for multiple, *parts in reversed(scaled):
        below = base.elementwise(net, "LESS", left, multiple)
        left = where(net, below, left, _remainder_of_positive_numbers(net, left, multiple, parts))
    left = base.elementwise(net, "PROD", left, more)
    return where(net, is_negative(net, x), base.unary(net, "NEG", left), left)


def _remainder_of_positive_numbers(net: Net, a: ITensor, b: ITensor, parts_of_b: Sequence[ITensor]) -> ITensor:
    """Return ``a mod b`` of positive numbers, exact for a quotient below 2**24; ``b`` is the sum of ``parts_of_b``."""
    times, left = base.unary(net, "ROUND", base.elementwise(net, "DIV", a, b)), a
    for part in parts_of_b:
        for factor in _split_in_two(net, times):
            left = base.elementwise(net, "SUB", left, base.elementwise(net, "PROD", factor, part))
    below = layer(net, "LESS", left, 0.0, torch.float32)
    return where(net, below, base.elementwise(net, "SUM", left, b), left)


def _split_in_three(net: Net, x: ITensor) -> list[ITensor]:
    """Return three float32 tensors of 8 significant bits (as bfloat16) whose sum is ``x``, the largest first."""
    parts = []
    for _ in range(2):
        part = base.cast(net, base.cast(net, x, torch.bfloat16), torch.float32)
        parts.append(part)
        x = base.elementwise(net, "SUB", x, part)
    return [*parts, x]


def _split_in_two(net: Net, x: ITensor) -> list[ITensor]:
    """Split an integer into a multiple of 4096 and a remainder of 12 bits."""
    scaled = base.unary(net, "ROUND", layer(net, "DIV", x, HALF_OF_FLOAT, torch.float32))
    high = layer(net, "PROD", scaled, HALF_OF_FLOAT, torch.float32)
    return [high, base.elementwise(net, "SUB", x, high)]


BITS = 4
BASE = 1 << BITS


@block
def bitwise(net: Net, operation: str, a: Value, b: Value) -> ITensor:
    """Return bitwise ``AND``, ``OR`` (``a + b - (a & b)``) or ``XOR`` (``a + b - 2 * (a & b)``)."""
    dtype = base.result_type(a, b)
    if dtype == torch.bool:
        return logical(net, operation, a, b)
    compute = arithmetic_dtype(dtype)
    x, y = promote(net, a, b, dtype=compute)
    both = _and_with_low_mask(net, x, b) if is_low_mask(b) else _bitwise_and(net, x, y)
    if operation != "AND":
        both = layer(net, "PROD", both, 2, compute) if operation == "XOR" else both
        both = base.elementwise(net, "SUB", base.elementwise(net, "SUM", x, y), both)
    return base.cast(net, both, dtype)


def is_low_mask(value: Value) -> bool:
    """Return whether a value is a constant ``2**k - 1``, so that ``x & value`` is ``x % 2**k``."""
    return isinstance(value, int) and value >= 0 and value & (value + 1) == 0 and value < 1 << 31


@block
def bitwise_not(net: Net, x: Value) -> ITensor:
    dtype = base.dtype_of(x)
    if dtype == torch.bool:
        return base.unary(net, "NOT", base.tensor(net, x))
    return base.cast(net, layer(net, "SUB", -1, x, arithmetic_dtype(dtype)), dtype)


def _and_with_low_mask(net: Net, x: ITensor, mask: int) -> ITensor:
    dtype, size = base.dtype_of(x), mask + 1
    above = layer(net, "FLOOR_DIV", x, size, dtype)
    return base.elementwise(net, "SUB", x, layer(net, "PROD", above, size, dtype))


def _bitwise_and(net: Net, x: ITensor, y: ITensor) -> ITensor:
    """Return ``x & y`` of two integer tensors of equal dtype and rank."""
    dtype = base.dtype_of(x)
    high = layer(net, "PROD", _split_into_digits(net, x), BASE, dtype)
    place = base.elementwise(net, "SUM", high, _split_into_digits(net, y))
    pairs = [i & j for i in range(BASE) for j in range(BASE)]
    table = base.constant(net, torch.tensor(pairs, dtype=dtype))
    found = net.add("gather", table, place, 0).get_output(0)
    weighted = layer(net, "PROD", found, _powers_of_16(dtype), dtype)
    last = base.rank(x)
    return net.add("reduce", weighted, trt.ReduceOperation.SUM, 1 << last, False).get_output(0)


def _split_into_digits(net: Net, x: ITensor) -> ITensor:
    """Split integers into their two's complement 4-bit digits along a new last dim, the lowest digit first."""
    dtype = base.dtype_of(x)
    spread = base.unsqueeze(net, x, [base.rank(x)])
    shifted = layer(net, "FLOOR_DIV", spread, _powers_of_16(dtype), dtype)
    return _and_with_low_mask(net, shifted, BASE - 1)


def _powers_of_16(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([BASE**k for k in range(torch.iinfo(dtype).bits // BITS)], dtype=dtype)


@block
def shift(net: Net, left: bool, a: Value, b: Value) -> ITensor:
    """Return ``a << b`` or ``a >> b``. If ``b`` exceeds the dtype's bits, this is 0, or -1 for negative ``a``."""
    dtype = base.result_type(a, b)
    x, y = promote(net, a, b, dtype=dtype)
    bits = torch.iinfo(dtype).bits
    low, high = layer(net, "LESS", y, 0, dtype), layer(net, "GREATER", y, bits - 1, dtype)
    beyond = base.elementwise(net, "OR", low, high)
    count = where(net, beyond, bits - 1, y, dtype)
    if left:
        shifted = base.elementwise(net, "PROD", x, _power_of_two(net, count))
        return where(net, beyond, 0, shifted, dtype)
    first = layer(net, "FLOOR_DIV", count, 2, dtype)  # two steps, since 2**63 overflows
    for part in (first, base.elementwise(net, "SUB", count, first)):
        x = base.elementwise(net, "FLOOR_DIV", x, _power_of_two(net, part))
    return x


def _power_of_two(net: Net, exponent: ITensor) -> ITensor:
    dtype = base.dtype_of(exponent)
    bits = torch.iinfo(dtype).bits
    powers = [*(1 << k for k in range(bits - 1)), torch.iinfo(dtype).min]
    table = base.constant(net, torch.tensor(powers, dtype=dtype))
    return net.add("gather", table, exponent, 0).get_output(0)
