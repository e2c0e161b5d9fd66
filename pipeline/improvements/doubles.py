"""Emulate float64 arithmetic in float32: numbers as two parts, angles as fractions of a turn, and sines and cosines.

A number is the sum of a coarse part, exact in bfloat16, and a fine part, exact in float32: together 33 bits. An angle
is a fraction of a full turn: a multiple of ``1 / GRID`` plus a remainder. These representations stay correct whether a
compiler rounds ``a * b - c`` once or twice, and in any order of additions: the low bits of exact values are removed by
a cast or by ``round``, which no algebraic rewrite eliminates.
"""

from __future__ import annotations

import enum
import math
from typing import Final, TypeAlias

import torch
from torch import Tensor

from pipeline.converters.composite_math import polynomial

Parts: TypeAlias = tuple[Tensor, ...]
"""The float32 tensors that represent a float64 value in a `Format`."""


class Format(enum.Enum):
    """The ways to store a float64 value: as one or more float32 tensors, or, if it is a CONSTANT, in float64."""

    CONSTANT = "the value itself, known while compiling"
    SPLIT = "the coarse and the fine part of an input or a constant"
    SINGLE = "one tensor, rounded"
    TURNS = "an angle in turns, in two parts"
    TERMS = "two numbers, which are added where they are rounded"
    PARTS = "a coarse and a fine part"
    CIRCLE = "the sine and the cosine of an angle beyond quarters of a turn, and how many quarters"
    SUM = "one tensor, rounded, with which nothing more is computed"


GRID: Final = 4096
"""An angle's coarse part is a multiple of ``1 / GRID`` of a turn; float32 adds such multiples exactly."""

TURN: Final = 6.28125
"""2 pi rounded to 8 bits, so that its product with a multiple of ``1 / GRID`` of a turn is exact in float32."""

_TERMS: Final = [(2 * math.pi) ** k / math.factorial(k) * (-1) ** (k // 2) for k in range(11)]
SINE: Final = (2 * math.pi - TURN, *_TERMS[3::2])
"""Coefficients of (sin(2 pi t) / t - TURN) in t², for turns t of at most 1/8."""

COSINE: Final = tuple(_TERMS[2::2])
"""Coefficients of (cos(2 pi t) - 1) / t² in t², for turns t of at most 1/8."""


def keep_parts(x: Parts) -> Parts:
    """Return ``x`` unchanged: converts between formats with equal tensors, such as `Format.PARTS` to `Format.TERMS`."""
    return x


def to_single_part(x: Tensor) -> Parts:
    """Round a tensor to float32, and return it as a tuple of one part."""
    return (x.float(),)


def split_single_part(single: Parts) -> Parts:
    """Split a float32 tensor, given as a tuple of one part, into a coarse and a fine part."""
    return to_coarse_and_fine(single[0])


def to_coarse_and_fine(x: Tensor) -> Parts:
    """Split a tensor into a sum of two: a coarse part, exact in bfloat16, and the fine rest, in float32. The sum keeps
    32 bits of an integer and 33 bits of a float64."""
    exact = x if x.dtype == torch.float64 else x.float() if x.is_floating_point() else x.long()
    coarse = exact.to(torch.bfloat16).float()
    return coarse, (exact - coarse.to(exact.dtype)).float()


def multiply(x: Parts, y: Parts) -> Parts:
    """Multiply two values, each given as a coarse and a fine part. Return the product as a sum of two tensors: an exact
    16-bit number, and a remainder of at most 1/64 of this number."""
    return x[0] * y[0], x[0] * y[1] + x[1] * (y[0] + y[1])


def divide(x: Parts, divisor: Tensor) -> Parts:
    """Return ``x / divisor``, for a float64 constant ``divisor``, as a sum of two tensors, as `multiply` does."""
    return multiply(x, to_coarse_and_fine(divisor.reciprocal()))


def product_to_coarse_and_fine(product: Parts) -> Parts:
    """Convert a product (a sum of two tensors, see `multiply`) to its bfloat16 rounding and the rest, in float32."""
    coarse = (product[0] + product[1]).to(torch.bfloat16).float()
    return coarse, (product[0] - coarse) + product[1]


def sum_to_single_part(parts: Parts) -> Parts:
    """Add the two tensors that represent a value, and return their float32 sum as a tuple of one."""
    return (parts[0] + parts[1],)


def add(x: Parts, y: Parts) -> Parts:
    """Return ``x + y`` as a tuple of one float32 tensor. Both are sums of two tensors, large and small; the large ones
    are added first, and so exactly if they nearly cancel."""
    return ((x[0] + y[0]) + (x[1] + y[1]),)


def subtract(x: Parts, y: Parts) -> Parts:
    """Return ``x - y`` as a tuple of one float32 tensor; both are given as sums of two tensors, large and small."""
    return ((x[0] - y[0]) + (x[1] - y[1]),)


def product_in_turns(x: Parts, factor: Tensor) -> Parts:
    """Return the angle ``x * factor`` (radians, a float64 constant ``factor``) in turns, without whole turns.

    ``x`` is split into three parts of 8 bits; ``factor / (2 * pi)`` into two parts of 16 bits and a remainder. So the
    products of parts are exact.
    """
    middle = x[1].to(torch.bfloat16).float()
    factor = factor * (0.5 / math.pi)
    first = _first_16_bits(factor)
    second = _first_16_bits(factor - first)
    rank = max(x[0].dim(), factor.dim())
    steps = _stack_broadcast([x[0] + x[1], *[x[1] - middle, middle, x[0]] * 2], rank)
    rates = _stack_broadcast([factor - first - second, *[second] * 3, *[first] * 3], rank).float()
    terms = steps * rates
    terms = terms - terms.round()
    coarse = (terms * GRID).round() * (1 / GRID)
    return coarse.sum(0), (terms - coarse).sum(0)


def quotient_in_turns(x: Parts, divisor: Tensor) -> Parts:
    """Convert the angle ``x / divisor`` from radians to turns and drop whole turns, like `product_in_turns`; ``x``: a
    coarse and a fine part. Return a multiple of ``1 / GRID`` of a turn, and the remainder."""
    return product_in_turns(x, divisor.reciprocal())


def radians_to_turns(angle: Tensor) -> Parts:
    """Convert radians to turns without whole turns, as a sum: a multiple of ``1 / GRID``, and a small remainder."""
    return product_in_turns(to_coarse_and_fine(angle), torch.ones((), dtype=torch.float64, device=angle.device))


def radians_to_sine_and_cosine(angle: Tensor) -> Parts:
    """Return `reduced_sine_and_cosine` of an angle in radians: (sine, cosine, number of quarter turns taken off)."""
    return reduced_sine_and_cosine(radians_to_turns(angle))


def _first_16_bits(x: Tensor) -> Tensor:
    """Return the first 16 of a float64's 53 bits, by Veltkamp's splitting; used only for constants, in PyTorch."""
    scaled = x * (2**37 + 1)
    return scaled - (scaled - x)


def _stack_broadcast(tensors: list[Tensor], rank: int) -> Tensor:
    """Broadcast tensors to the given rank, and stack them in a new first dim."""
    return torch.stack([x[(None,) * (rank - x.dim())] if x.dim() < rank else x for x in tensors])


def reduced_sine_and_cosine(turns: Parts) -> Parts:
    """Return (sine, cosine, quarters) of an angle minus its nearest number of quarter turns; ``quarters``: that number,
    from -2 to 2. ``turns``: the angle in turns, as a sum of two tensors."""
    coarse = turns[0] - turns[0].round()
    quarters = (coarse * 4).round()
    coarse = coarse - quarters * 0.25
    angle = coarse + turns[1]
    square = angle * angle
    sine = coarse * TURN + (turns[1] * TURN + angle * polynomial(square, SINE))
    return sine, 1 + square * polynomial(square, COSINE), quarters


def sine_from_reduced(reduced: Parts) -> Parts:
    """Return the sine of an angle from the results of `reduced_sine_and_cosine`."""
    even, odd, quarters = reduced
    return (_rotate_by_quarters(even, odd, quarters, (quarters < -0.5) | (quarters > 1.5)),)


def cosine_from_reduced(reduced: Parts) -> Parts:
    """Return the cosine of an angle. ``reduced``: (sine, cosine, quarters), from `reduced_sine_and_cosine`."""
    odd, even, quarters = reduced
    return (_rotate_by_quarters(even, odd, quarters, (quarters > 0.5) | (quarters < -1.5)),)


def _rotate_by_quarters(value_if_even: Tensor, value_if_odd: Tensor, quarters: Tensor, is_negative: Tensor) -> Tensor:
    """Return ``value_if_odd`` where ``quarters`` is -1 or 1, else ``value_if_even``; negated where ``is_negative``."""
    value = torch.where(quarters.abs() == 1, value_if_odd, value_if_even)
    return torch.where(is_negative, -value, value)


GIVEN: Final = {
    Format.SPLIT: to_coarse_and_fine,
    Format.SINGLE: to_single_part,
    Format.TURNS: radians_to_turns,
    Format.TERMS: to_coarse_and_fine,
    Format.PARTS: to_coarse_and_fine,
    Format.CIRCLE: radians_to_sine_and_cosine,
    Format.SUM: to_single_part,
}
"""For each format, the function that converts to it a constant or a tensor whose dtype is not float64."""

DERIVED: Final = (
    (Format.SPLIT, Format.PARTS, keep_parts),
    (Format.TERMS, Format.PARTS, product_to_coarse_and_fine),
    (Format.SINGLE, Format.PARTS, split_single_part),
    (Format.PARTS, Format.TERMS, keep_parts),
    (Format.TURNS, Format.CIRCLE, reduced_sine_and_cosine),
    (Format.SINGLE, Format.SUM, keep_parts),
    (Format.TERMS, Format.SUM, sum_to_single_part),
)
"""Conversions between formats of a value: from a format, to a format, and the function. The first match applies."""
