"""Represent complex values as pairs of real values, and compute functions of z = x + iy from x and y."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import torch

from pipeline.aten.types import Argument

Rule: TypeAlias = Callable[..., Any]


class Pair(NamedTuple):
    """A complex value as its real and imaginary part, which are two tensors of one shape and dtype, or two numbers."""

    real: Argument
    imag: Argument


def bilinear_rule(real_rule: Rule) -> Rule:
    """Return a function that computes a bilinear operator, such as ``torch.matmul``, for pairs: by four calls of
    ``real_rule`` on real tensors, or by two if one operand is real."""

    def rule(a: Argument, b: Argument) -> Pair:
        if not isinstance(a, Pair):
            return Pair(real_rule(a, b.real), real_rule(a, b.imag))
        if not isinstance(b, Pair):
            return Pair(real_rule(a.real, b), real_rule(a.imag, b))
        real = real_rule(a.real, b.real) - real_rule(a.imag, b.imag)
        return Pair(real, real_rule(a.real, b.imag) + real_rule(a.imag, b.real))

    return rule


multiply = bilinear_rule(torch.mul)


Function: TypeAlias = Callable[[Pair], Pair]


def magnitude(z: Pair) -> torch.Tensor:
    """Return the absolute value of a complex number."""
    return torch.hypot(z.real, z.imag)


def angle(z: Pair) -> torch.Tensor:
    """Return the angle (argument) of a complex number, in (-pi, pi]."""
    return torch.atan2(z.imag, z.real)


def square_root(z: Pair) -> Pair:
    """Return the square root of z = x + iy with a real part >= 0. Of its two parts, the larger (in magnitude) is
    sqrt((|z| + |x|) / 2), and the smaller is |y| / (2 * larger)."""
    x, y = z
    larger = torch.sqrt((magnitude(z) + x.abs()) / 2)
    smaller = torch.where(larger == 0, larger, y.abs() / (2 * larger))
    right = x >= 0
    imag = torch.where(right, smaller, larger)
    return Pair(torch.where(right, larger, smaller), torch.where(y < 0, -imag, imag))


def sine(z: Pair) -> Pair:
    """Return the sine of z = x + iy: sin x cosh y + i cos x sinh y."""
    return Pair(torch.sin(z.real) * torch.cosh(z.imag), torch.cos(z.real) * torch.sinh(z.imag))


def cosine(z: Pair) -> Pair:
    """Return the cosine of z = x + iy: cos x cosh y - i sin x sinh y."""
    return Pair(torch.cos(z.real) * torch.cosh(z.imag), -torch.sin(z.real) * torch.sinh(z.imag))


def hyperbolic_sine(z: Pair) -> Pair:
    """Return the hyperbolic sine of z = x + iy: sinh x cos y + i cosh x sin y."""
    return Pair(torch.sinh(z.real) * torch.cos(z.imag), torch.cosh(z.real) * torch.sin(z.imag))


def hyperbolic_cosine(z: Pair) -> Pair:
    """Return the hyperbolic cosine of z = x + iy: cosh x cos y + i sinh x sin y."""
    return Pair(torch.cosh(z.real) * torch.cos(z.imag), torch.sinh(z.real) * torch.sin(z.imag))


def hyperbolic_tangent(z: Pair) -> Pair:
    """Return tanh(x + iy) = (sinh 2x + i sin 2y) / (cosh 2x + cos 2y). Numerator and denominator are multiplied by 2
    exp(-2 |x|), so that no exponential overflows. The denominator is computed as 2 (sinh² x + cos² y), a sum without
    cancellation."""
    x, y = z
    size = x.abs()
    power = torch.exp(-2 * size)
    less = -torch.expm1(-2 * size)
    below = less * less + 4 * power * torch.cos(y) ** 2
    real = -torch.expm1(-4 * size) / below
    return Pair(torch.where(x < 0, -real, real), 4 * power * torch.sin(y) * torch.cos(y) / below)


def logarithm(z: Pair) -> Pair:
    """Return the natural logarithm of a complex number, with an imaginary part in (-pi, pi]."""
    return Pair(torch.log(magnitude(z)), angle(z))


def logarithm_of_base(base: float) -> Function:
    """Return a function that computes the logarithm to this base."""
    return lambda z: Pair(*(part / math.log(base) for part in logarithm(z)))


FUNCTIONS: Final[dict[str, Function]] = {
    "sqrt": square_root,
    "sin": sine,
    "cos": cosine,
    "sinh": hyperbolic_sine,
    "cosh": hyperbolic_cosine,
    "tanh": hyperbolic_tangent,
    "log": logarithm,
    "log2": logarithm_of_base(2),
    "log10": logarithm_of_base(10),
}
"""For each ATen operator's name, the function that computes it on pairs."""
