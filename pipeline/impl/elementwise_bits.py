"""Add bitwise operations: of bools by logic layers, of integers by a table of the results for pairs of 4-bit digits."""

from __future__ import annotations

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.block_decorators import block
from pipeline.impl.elementwise import arithmetic_dtype, layer, logical, promote, where
from pipeline.network.net import Net
from pipeline.trt import trt

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
