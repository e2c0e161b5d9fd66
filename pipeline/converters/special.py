"""Decompose error and gamma functions, which TensorRT lacks, to polynomials.

The coefficients were fitted to float64 values by weighted least squares; each comment ends with the largest relative
error. Half precision is computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce, wraps
from typing import Final

import torch
from torch import Tensor

from pipeline.aten.types import aten
from pipeline.converters.decompositions import register_torch_trt_decomposition

ERFCX: Final = (
    *(1.23299512, -0.139621091, 0.0153798263, 0.0680962634, -0.101041637, 0.0937397037, -0.0663159983),
    *(0.037141616, -0.0162363798, 0.00508110457, -0.000703729661, -0.000248010917, 0.000112385213),
)
"""Coefficients of (1 + 2x) exp(x²) erfc(x) as a polynomial in (x - 4) / (x + 4), for x ≥ 0; relative error 2.2e-9."""

ERFINV_CENTRE: Final = (
    *(1.50140936, 0.246640286, -0.00417738678, -0.00125274187, 0.000218344443),
    *(-4.96335586e-06, -3.46270557e-06, 4.66172416e-07, 2.32327108e-08, -8.79118339e-09),
)
"""Coefficients of erfinv(x) / x as a polynomial in w - 2.5, where w = -log(1 - x²) < 5; relative error 5.6e-9."""

ERFINV_TAIL: Final = (
    *(2.832977, 1.00167423, 0.00943503658, -0.00762624794, 0.00576555041),
    *(-0.00365652854, 0.0012922279, 8.25068153e-05, -0.000159764855),
)
"""Coefficients of erfinv(x) / x as a polynomial in sqrt(-log(1 - x²)) - 3, for x near 1; relative error 8.3e-8."""

LGAMMA: Final = (
    *(0.422784326, -0.100317273, 0.0329656274, -0.0123849756, 0.004991547, -0.00210205722),
    *(0.000944335827, -0.000425584383, 0.000130587401, -5.24040279e-05, 7.81937176e-05, -3.87405183e-05),
)
"""Coefficients of lgamma(x) / ((x - 1) (x - 2)) as a polynomial in x - 2, for x from 1 to 3; relative error 2.2e-8."""


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Evaluate a polynomial by Horner's scheme; the first coefficient is the constant term."""
    *rest, last = coefficients
    return reduce(lambda total, c: total * x + c, reversed(rest[:-1]), x * last + rest[-1])


def _compute_in_float(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Wrap a function to compute integers, bools and half precision in float32; the result has eager's dtype."""

    @wraps(function)
    def computed(self: Tensor) -> Tensor:
        dtype = self.dtype if self.is_floating_point() else torch.get_default_dtype()
        return function(self.to(torch.float32 if dtype.itemsize == 2 else dtype)).to(dtype)

    return computed


def _scaled_erfc(x: Tensor) -> Tensor:
    """Return exp(x²) erfc(x) for x ≥ 0."""
    return _polynomial((x - 4) / (x + 4), ERFCX) / (1 + 2 * x)


def _exp_of_negative_square(x: Tensor) -> Tensor:
    """Return exp(-x²) as a product of exponentials: for a part of x whose square is exact, and for the remainder."""
    part = (x * 64).floor() / 64
    return (-part * part).exp() * (-(x - part) * (x + part)).exp()


@register_torch_trt_decomposition(aten.erfc.default)
@_compute_in_float
def erfc(self: Tensor) -> Tensor:
    x = self.abs().clamp(max=11.0)
    tail = _exp_of_negative_square(x) * _scaled_erfc(x)
    return torch.where(self < 0, 2 - tail, tail)


@register_torch_trt_decomposition(aten.special_erfcx.default)
@_compute_in_float
def erfcx(self: Tensor) -> Tensor:
    size = self.abs()
    far = size > 1e4
    scaled = torch.where(far, 1 / (math.sqrt(math.pi) * size), _scaled_erfc(torch.where(far, 1e4, size)))
    return torch.where(self < 0, 2 / _exp_of_negative_square(size.clamp(max=11.0)) - scaled, scaled)


@register_torch_trt_decomposition(aten.erfinv.default)
@_compute_in_float
def erfinv(self: Tensor) -> Tensor:
    w = -((1 - self) * (1 + self)).log()
    centre, tail = _polynomial(w - 2.5, ERFINV_CENTRE), _polynomial(w.sqrt() - 3, ERFINV_TAIL)
    inverse = self * torch.where(w < 5, centre, tail)
    return torch.where(self.abs() == 1, self * math.inf, inverse)


def _sine_of_pi(x: Tensor) -> Tensor:
    """Return sin(pi x), from the distance of x to the nearest integer; an odd integer inverts the sign."""
    whole = x.round()
    sine = ((x - whole) * math.pi).sin()
    return torch.where(whole / 2 == (whole / 2).round(), sine, -sine)


def _log_gamma(x: Tensor) -> Tensor:
    """Return lgamma(x) for x > 0: Stirling's series from 3, a polynomial below 3, the recurrence below 1."""
    low = x < 1
    near = torch.where(low, x + 1, x)
    first, second = torch.where(low, x, x - 1), torch.where(low, x - 1, x - 2)
    small = first * second * _polynomial(second, LGAMMA) - torch.where(low, x, 1.0).log()
    far = near.clamp(min=3.0)
    inverse = 1 / far
    square = inverse * inverse
    series = inverse * _polynomial(square, (1 / 12, -1 / 360, 1 / 1260))
    large = (far - 0.5) * far.log() - far + (0.5 * math.log(2 * math.pi) + series)
    return torch.where(x < 3, small, large)


@register_torch_trt_decomposition(aten.lgamma.default)
@_compute_in_float
def lgamma(self: Tensor) -> Tensor:
    size = self.abs()
    above = _log_gamma(size)
    below = (math.pi / _sine_of_pi(self).abs()).log() - size.log() - above
    result = torch.where(self > 0, above, torch.where(self == 0, math.inf, below))
    return torch.where(size == math.inf, math.inf, result)


STEPS: Final = 6
"""The number of recurrence steps before digamma's asymptotic series; with 6 steps its error is 2.5e-9."""


@register_torch_trt_decomposition(aten.digamma.default)
@_compute_in_float
def digamma(self: Tensor) -> Tensor:
    x = torch.where(self > 0, self, 1 - self)
    steps = reduce(torch.add, (1 / (x + k) for k in range(STEPS)))
    inverse = 1 / (x + STEPS)
    square = inverse * inverse
    series = inverse / 2 + square * _polynomial(square, (1 / 12, -1 / 120, 1 / 252))
    above = (x + STEPS).log() - series - steps
    from_whole = self - self.round()
    mirrored = above - math.pi / (from_whole * math.pi).tan()
    below = torch.where(from_whole == 0, math.nan, mirrored)
    return torch.where(self > 0, above, torch.where(self == 0, -1 / self, below))
