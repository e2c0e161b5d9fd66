"""Powers. Small integer exponents are repeated multiplications, exact on integers and with eager's signs."""

from __future__ import annotations

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.block_decorators import block
from pipeline.impl.elementwise import arithmetic, is_number, layer, promoted, where, wide
from pipeline.impl.unary import absolute
from pipeline.network.net import Net

LARGEST_PRODUCT = 64
ONE_LAYER = (1, 2, 0.5, -1)
"""Exponents that take one layer, which rounds once."""


@block
def power(net: Net, a: Value, b: Value) -> ITensor:
    """``a ** b`` in eager's common dtype; in float32 for halves, rounded once."""
    dtype = base.result_type(a, b)
    compute = arithmetic(dtype) if is_number(b) and b in ONE_LAYER else wide(arithmetic(dtype))
    known = is_number(b)
    result = _known_power(net, base.tensor(net, a, compute), b) if known else _any_power(net, a, b, compute)
    return base.cast(net, result, dtype)


def _any_power(net: Net, a: Value, b: Value, dtype: torch.dtype) -> ITensor:
    """Return a power with any exponent. Negative powers of integers are 0, except of 1 and -1; TensorRT returns the
    largest int for 0."""
    if dtype.is_floating_point:
        return layer(net, "POW", a, b, dtype)
    x, y = promoted(net, a, b, dtype=dtype)
    result = base.elementwise(net, "POW", x, absolute(net, y))
    if is_number(a) and abs(a) == 1:
        return result
    fraction: Value = 0
    if not is_number(a):
        unit = layer(net, "EQUAL", absolute(net, x), 1, dtype)
        fraction = where(net, unit, result, 0, dtype)
    return where(net, layer(net, "LESS", y, 0, dtype), fraction, result, dtype)


def _known_power(net: Net, x: ITensor, exponent: float) -> ITensor:
    """Return a power with a number as exponent, by eager's shortcuts and repeated multiplication of integers."""
    dtype = base.dtype_of(x)
    if exponent in (0.5, -0.5):
        root = base.unary(net, "SQRT", x)
        return root if exponent > 0 else base.unary(net, "RECIP", root)
    if exponent in (1, 2, 3) or (not dtype.is_floating_point and 0 < exponent <= LARGEST_PRODUCT):
        return _multiplied(net, x, int(exponent))
    if exponent in (-1, -2) and dtype.is_floating_point:
        return base.unary(net, "RECIP", _multiplied(net, x, -int(exponent)))
    return layer(net, "POW", x, exponent, dtype)


def _multiplied(net: Net, x: ITensor, exponent: int) -> ITensor:
    """Return an integer power by repeated squaring."""
    if exponent == 1:
        return x
    half = _multiplied(net, x, exponent // 2)
    square = base.elementwise(net, "PROD", half, half)
    return square if exponent % 2 == 0 else base.elementwise(net, "PROD", square, x)
