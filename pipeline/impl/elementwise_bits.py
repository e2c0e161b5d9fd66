"""Bitwise operations. Bools have layers for them; integers are taken apart into digits of four bits, and the digits of
two numbers together pick their result from a table."""

from __future__ import annotations

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.elementwise import arithmetic, layer, logical, promoted, where
from pipeline.network.context import ConversionContext
from pipeline.trt import trt

BITS = 4
BASE = 1 << BITS


def bitwise(ctx: ConversionContext, name: str, operation: str, a: Value, b: Value) -> ITensor:
    """``AND``, ``OR`` or ``XOR`` of bools or integers: ``a | b`` is ``a + b - (a & b)``, ``a ^ b`` once less."""
    dtype = base.result_type(a, b)
    if dtype == torch.bool:
        return logical(ctx, name, operation, a, b)
    compute = arithmetic(dtype)
    x, y = promoted(ctx, name, a, b, dtype=compute)
    both = _low_bits(ctx, name, x, b) if is_low_mask(b) else _both(ctx, name, x, y)
    if operation != "AND":
        both = layer(ctx, name, "PROD", both, 2, compute) if operation == "XOR" else both
        both = base.elementwise(ctx, name, "SUB", base.elementwise(ctx, name, "SUM", x, y), both)
    return base.cast(ctx, name, both, dtype)


def is_low_mask(value: Value) -> bool:
    """Whether a value is a number of the form ``2**k - 1``: ``x & value`` is then a remainder."""
    return isinstance(value, int) and value >= 0 and value & (value + 1) == 0 and value < 1 << 31


def bitwise_not(ctx: ConversionContext, name: str, x: Value) -> ITensor:
    """``~x``: of a bool its opposite, of an integer ``-1 - x``."""
    dtype = base.dtype_of(x)
    if dtype == torch.bool:
        return base.unary(ctx, name, "NOT", base.tensor(ctx, name, x))
    return base.cast(ctx, name, layer(ctx, name, "SUB", -1, x, arithmetic(dtype)), dtype)


def _low_bits(ctx: ConversionContext, name: str, x: ITensor, mask: int) -> ITensor:
    dtype, size = base.dtype_of(x), mask + 1
    above = layer(ctx, name, "FLOOR_DIV", x, size, dtype)
    return base.elementwise(ctx, name, "SUB", x, layer(ctx, name, "PROD", above, size, dtype))


def _both(ctx: ConversionContext, name: str, x: ITensor, y: ITensor) -> ITensor:
    """``x & y`` of two tensors of one integer dtype and rank."""
    dtype = base.dtype_of(x)
    high = layer(ctx, name, "PROD", _digits(ctx, name, x), BASE, dtype)
    place = base.elementwise(ctx, name, "SUM", high, _digits(ctx, name, y))
    pairs = [i & j for i in range(BASE) for j in range(BASE)]
    table = base.constant(ctx, name, torch.tensor(pairs, dtype=dtype))
    found = ctx.add(name, "gather", table, place, 0).get_output(0)
    weighted = layer(ctx, name, "PROD", found, _weights(dtype), dtype)
    last = base.rank(x)
    return ctx.add(name, "reduce", weighted, trt.ReduceOperation.SUM, 1 << last, False).get_output(0)


def _digits(ctx: ConversionContext, name: str, x: ITensor) -> ITensor:
    """The digits of each integer along a new last dim, the lowest first; the highest holds the sign, as two's
    complement has it."""
    dtype = base.dtype_of(x)
    spread = base.unsqueeze(ctx, name, x, [base.rank(x)])
    shifted = layer(ctx, name, "FLOOR_DIV", spread, _weights(dtype), dtype)
    return _low_bits(ctx, name, shifted, BASE - 1)


def _weights(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([BASE**k for k in range(torch.iinfo(dtype).bits // BITS)], dtype=dtype)


def shift(ctx: ConversionContext, name: str, left: bool, a: Value, b: Value) -> ITensor:
    """``a`` times two to the power ``b``, or divided by it and rounded down. Beyond its bits: 0, or its sign."""
    dtype = base.result_type(a, b)
    x, y = promoted(ctx, name, a, b, dtype=dtype)
    bits = torch.iinfo(dtype).bits
    beyond = _outside(ctx, name, y, bits)
    count = where(ctx, name, beyond, bits - 1, y, dtype)
    if left:
        shifted = base.elementwise(ctx, name, "PROD", x, _power_of_two(ctx, name, count))
        return where(ctx, name, beyond, 0, shifted, dtype)
    first = layer(ctx, name, "FLOOR_DIV", count, 2, dtype)  # two steps: 2**63 is no int64
    for part in (first, base.elementwise(ctx, name, "SUB", count, first)):
        x = base.elementwise(ctx, name, "FLOOR_DIV", x, _power_of_two(ctx, name, part))
    return x


def _outside(ctx: ConversionContext, name: str, count: ITensor, bits: int) -> ITensor:
    low = layer(ctx, name, "LESS", count, 0, base.dtype_of(count))
    high = layer(ctx, name, "GREATER", count, bits - 1, base.dtype_of(count))
    return base.elementwise(ctx, name, "OR", low, high)


def _power_of_two(ctx: ConversionContext, name: str, exponent: ITensor) -> ITensor:
    dtype = base.dtype_of(exponent)
    bits = torch.iinfo(dtype).bits
    powers = [*(1 << k for k in range(bits - 1)), torch.iinfo(dtype).min]
    table = base.constant(ctx, name, torch.tensor(powers, dtype=dtype))
    return ctx.add(name, "gather", table, exponent, 0).get_output(0)
