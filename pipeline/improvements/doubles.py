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

Parts: TypeAlias = tuple[Tensor, ...]


class Format(enum.Enum):
    """The representations of a float64 value as float32 tensors; CONSTANT is a float64 value known while compiling."""

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
    """Return the parts of a value unchanged; used where two formats have the same tensors."""
    return x


def as_single(x: Tensor) -> Parts:
    """Round a tensor to float32, and return it as a tuple of one part."""
    return (x.float(),)


def split_single(x: Parts) -> Parts:
    """Split a float32 tensor, given as a tuple of one part, into a coarse and a fine part."""
    return split(x[0])


def split(x: Tensor) -> Parts:
    """Split a tensor into a coarse and a fine part, which keep 32 bits of an integer and 33 bits of a float64."""
    exact = x if x.dtype == torch.float64 else x.float() if x.is_floating_point() else x.long()
    coarse = exact.to(torch.bfloat16).float()
    return coarse, (exact - coarse.to(exact.dtype)).float()


def multiply(x: Parts, y: Parts) -> Parts:
    """Multiply coarse and fine parts. Return an exact 16-bit number, and a remainder of at most 1/64 of this number."""
    return x[0] * y[0], x[0] * y[1] + x[1] * (y[0] + y[1])


def divide(x: Parts, y: Tensor) -> Parts:
    """Return ``x / y`` for a float64 constant ``y``, as two numbers like those of `multiply`."""
    return multiply(x, split(y.reciprocal()))


def split_product(parts: Parts) -> Parts:
    """Convert the two numbers that `multiply` returns to a coarse and a fine part."""
    coarse = (parts[0] + parts[1]).to(torch.bfloat16).float()
    return coarse, (parts[0] - coarse) + parts[1]


def add_parts(parts: Parts) -> Parts:
    """Return the sum of the two parts of a value, rounded to float32."""
    return (parts[0] + parts[1],)


def add(x: Parts, y: Parts) -> Parts:
    """Add two values and round the sum to float32; coarse parts that nearly cancel are added exactly."""
    return ((x[0] + y[0]) + (x[1] + y[1]),)


def subtract(x: Parts, y: Parts) -> Parts:
    """Subtract two values and round the difference to float32."""
    return ((x[0] - y[0]) + (x[1] - y[1]),)


def angle_in_turns(x: Parts, rate: Tensor) -> Parts:
    """Return the angle ``x * rate`` for a float64 constant ``rate``, in turns without the integer part.

    ``x`` is split into three parts of 8 bits, and ``rate`` in turns into two parts of 16 bits and a remainder, so that
    the products of parts are exact.
    """
    middle = x[1].to(torch.bfloat16).float()
    rate = rate * (0.5 / math.pi)
    first = _first_bits(rate)
    second = _first_bits(rate - first)
    rank = max(x[0].dim(), rate.dim())
    steps = _stack_broadcast([x[0] + x[1], *[x[1] - middle, middle, x[0]] * 2], rank)
    rates = _stack_broadcast([rate - first - second, *[second] * 3, *[first] * 3], rank).float()
    terms = steps * rates
    terms = terms - terms.round()
    coarse = (terms * GRID).round() * (1 / GRID)
    return coarse.sum(0), (terms - coarse).sum(0)


def turns_by_period(x: Parts, period: Tensor) -> Parts:
    """Return the angle ``x / period``, in turns, for a float64 constant ``period``."""
    return angle_in_turns(x, period.reciprocal())


def to_turns(x: Tensor) -> Parts:
    """Convert an angle in radians to turns without the integer part."""
    return angle_in_turns(split(x), torch.ones((), dtype=torch.float64, device=x.device))


def to_circle(x: Tensor) -> Parts:
    """Return the sine and cosine of an angle in radians, in the format of `sine_and_cosine`."""
    return sine_and_cosine(to_turns(x))


def _first_bits(x: Tensor) -> Tensor:
    """Return the first 16 of a float64's 53 bits, by Veltkamp's splitting; used only for constants, in PyTorch."""
    scaled = x * (2**37 + 1)
    return scaled - (scaled - x)


def _stack_broadcast(tensors: list[Tensor], rank: int) -> Tensor:
    """Broadcast tensors to the given rank, and stack them in a new first dim."""
    return torch.stack([x[(None,) * (rank - x.dim())] if x.dim() < rank else x for x in tensors])


def sine_and_cosine(parts: Parts) -> Parts:
    """Return an angle's sine and cosine relative to the nearest quarter turn, and that quarter, from -2 to 2."""
    coarse = parts[0] - parts[0].round()
    quarters = (coarse * 4).round()
    coarse = coarse - quarters * 0.25
    angle = coarse + parts[1]
    square = angle * angle
    sine = coarse * TURN + (parts[1] * TURN + angle * _polynomial(square, SINE))
    return sine, 1 + square * _polynomial(square, COSINE), quarters


def sine_of_circle(parts: Parts) -> Parts:
    """Return the sine of an angle from the results of `sine_and_cosine`."""
    even, odd, quarters = parts
    return (_rotate_by_quarters(even, odd, quarters, (quarters < -0.5) | (quarters > 1.5)),)


def cosine_of_circle(parts: Parts) -> Parts:
    """Return the cosine of an angle from the results of `sine_and_cosine`."""
    odd, even, quarters = parts
    return (_rotate_by_quarters(even, odd, quarters, (quarters > 0.5) | (quarters < -1.5)),)


def _rotate_by_quarters(even: Tensor, odd: Tensor, quarters: Tensor, negative: Tensor) -> Tensor:
    value = torch.where(quarters.abs() == 1, odd, even)
    return torch.where(negative, -value, value)


def _polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    *rest, value = coefficients
    result = x * value + rest.pop()
    while rest:
        result = result * x + rest.pop()
    return result


GIVEN: Final = {
    Format.SPLIT: split,
    Format.SINGLE: as_single,
    Format.TURNS: to_turns,
    Format.TERMS: split,
    Format.PARTS: split,
    Format.CIRCLE: to_circle,
    Format.SUM: as_single,
}
"""For each format, the function that converts to it a constant or a tensor whose dtype is not float64."""

DERIVED: Final = (
    (Format.SPLIT, Format.PARTS, keep_parts),
    (Format.TERMS, Format.PARTS, split_product),
    (Format.SINGLE, Format.PARTS, split_single),
    (Format.PARTS, Format.TERMS, keep_parts),
    (Format.TURNS, Format.CIRCLE, sine_and_cosine),
    (Format.SINGLE, Format.SUM, keep_parts),
    (Format.TERMS, Format.SUM, add_parts),
)
"""Conversions between formats of a value: from a format, to a format, and the function. The first match applies."""
