"""Functions of a complex number z = x + iy, in terms of its parts.

Formulas: DLMF 4.15 and 4.21 (trigonometric), 4.28 and 4.35 (hyperbolic), in forms in which nothing overflows that eager
has as a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeAlias

import torch

from pipeline.decomposition.complex_pairs import Pair

Function: TypeAlias = Callable[[Pair], Pair]


def square_root(z: Pair) -> Pair:
    """The root with a real part of 0 or more. The larger part is computed first: the other is y by twice of it."""
    x, y = z
    larger = torch.sqrt((torch.hypot(x, y) + x.abs()) / 2)
    smaller = torch.where(larger == 0, larger, y.abs() / (2 * larger))
    right = x >= 0
    imag = torch.where(right, smaller, larger)
    return Pair(torch.where(right, larger, smaller), torch.where(y < 0, -imag, imag))


def sine(z: Pair) -> Pair:
    """sin x cosh y + i cos x sinh y"""
    return Pair(torch.sin(z.real) * torch.cosh(z.imag), torch.cos(z.real) * torch.sinh(z.imag))


def cosine(z: Pair) -> Pair:
    """cos x cosh y - i sin x sinh y"""
    return Pair(torch.cos(z.real) * torch.cosh(z.imag), -torch.sin(z.real) * torch.sinh(z.imag))


def hyperbolic_sine(z: Pair) -> Pair:
    """sinh x cos y + i cosh x sin y"""
    return Pair(torch.sinh(z.real) * torch.cos(z.imag), torch.cosh(z.real) * torch.sin(z.imag))


def hyperbolic_cosine(z: Pair) -> Pair:
    """cosh x cos y + i sinh x sin y"""
    return Pair(torch.cosh(z.real) * torch.cos(z.imag), torch.sinh(z.real) * torch.sin(z.imag))


def hyperbolic_tangent(z: Pair) -> Pair:
    """(sinh 2x + i sin 2y) / (cosh 2x + cos 2y), both by twice the larger exponential. The sum of the cosines is twice
    that of two squares, which does not cancel."""
    x, y = z
    size = x.abs()
    power = torch.exp(-2 * size)
    less = -torch.expm1(-2 * size)
    below = less * less + 4 * power * torch.cos(y) ** 2
    real = -torch.expm1(-4 * size) / below
    return Pair(torch.where(x < 0, -real, real), 4 * power * torch.sin(y) * torch.cos(y) / below)


def logarithm(base: float) -> Function:
    """The logarithm to a base."""

    def function(z: Pair) -> Pair:
        scale = 1 / math.log(base)
        return Pair(torch.log(torch.hypot(z.real, z.imag)) * scale, torch.atan2(z.imag, z.real) * scale)

    return function


FUNCTIONS: Final[dict[str, Function]] = {
    "sqrt": square_root,
    "sin": sine,
    "cos": cosine,
    "sinh": hyperbolic_sine,
    "cosh": hyperbolic_cosine,
    "tanh": hyperbolic_tangent,
    "log": logarithm(math.e),
    "log2": logarithm(2),
    "log10": logarithm(10),
}
"""By the name of the operator."""
