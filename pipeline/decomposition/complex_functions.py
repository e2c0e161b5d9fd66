"""Represent complex values as pairs of real values, and compute functions of z = x + iy from x and y.

TensorRT has no Fourier transform: they are matmuls by matrices of roots of unity. A length of at most ``MAX_LENGTH`` is
one matmul. A longer length is split into two factors: transforms of these lengths with a rotation between them (Cooley
and Tukey), so that no matrix is larger than ``MAX_LENGTH`` by ``MAX_LENGTH``. The matrices are constants, computed in
float64. For a dynamic length, of at most ``MAX_DYNAMIC``, an engine computes the roots of one turn at each call, and
gathers the matrix from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import torch

from pipeline.aten.types import Argument, Target
from pipeline.shapes.environment import expression, upper_bound

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


FUNCTIONS: Final[dict[str, Function]] = {
    "sqrt": square_root,
    "sin": lambda z: Pair(torch.sin(z.real) * torch.cosh(z.imag), torch.cos(z.real) * torch.sinh(z.imag)),
    "cos": lambda z: Pair(torch.cos(z.real) * torch.cosh(z.imag), -torch.sin(z.real) * torch.sinh(z.imag)),
    "sinh": lambda z: Pair(torch.sinh(z.real) * torch.cos(z.imag), torch.cosh(z.real) * torch.sin(z.imag)),
    "cosh": lambda z: Pair(torch.cosh(z.real) * torch.cos(z.imag), torch.sinh(z.real) * torch.sin(z.imag)),
    "tanh": hyperbolic_tangent,
    "log": logarithm,
    "log2": lambda z: Pair(*(part / math.log(2) for part in logarithm(z))),
    "log10": lambda z: Pair(*(part / math.log(10) for part in logarithm(z))),
}
"""For each ATen operator's name, the function that computes it on pairs."""


MAX_LENGTH = 256
"""The longest transform that is a single matmul, and the largest prime factor of longer transforms."""

MAX_DYNAMIC = 1024
"""The longest transform of a dynamic length, which is always one matmul."""

Size: TypeAlias = Argument
"""An int, or a ``torch.SymInt`` for a dynamic size."""

complex_matmul = bilinear_rule(torch.matmul)


def complex_to_complex(z: Pair, dim: Sequence[int], normalization: int, forward: bool) -> Argument:
    """Compute ``aten._fft_c2c``, a transform of complex values, for a pair of real tensors."""
    sizes = [z.real.shape[d] for d in dim]
    if not all(map(is_supported_length, sizes)):
        return NotImplemented
    for d in dim:
        z = _transform_along(z, d, forward)
    return _normalize(z, normalization, sizes)


def real_to_complex(x: torch.Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Argument:
    """Compute ``aten._fft_r2c``. The last of the dims is transformed first, and halved if ``onesided``."""
    sizes = [x.shape[d] for d in dim]
    if not all(map(is_supported_length, sizes)):
        return NotImplemented
    z = _transform_along(x, dim[-1], forward=True)
    if onesided:
        z = Pair(*(part.narrow(dim[-1], 0, sizes[-1] // 2 + 1) for part in z))
    for d in dim[:-1]:
        z = _transform_along(z, d, forward=True)
    return _normalize(z, normalization, sizes)


def complex_to_real(z: Pair, dim: Sequence[int], normalization: int, last_dim_size: int) -> Argument:
    """Compute ``aten._fft_c2r``. The last of the dims holds half of a Hermitian spectrum."""
    sizes = [*(z.real.shape[d] for d in dim[:-1]), last_dim_size]
    if not all(map(is_supported_length, sizes)):
        return NotImplemented
    for d in dim[:-1]:
        z = _transform_along(z, d, forward=False)
    if is_dynamic_length(last_dim_size):
        whole = _real_inverse_of_half_spectrum(z, dim[-1], last_dim_size)
    else:
        whole = _transform_along(_complete_spectrum(z, dim[-1], last_dim_size), dim[-1], forward=False)
    return _normalize(whole, normalization, sizes).real


def is_supported_length(size: Size) -> bool:
    """Return whether a Fourier transform along a dim of this size is supported: a dynamic size of at most 1024
    (``MAX_DYNAMIC``), or a static size without a prime factor above 256 (``MAX_LENGTH``)."""
    if is_dynamic_length(size):
        return upper_bound(size) <= MAX_DYNAMIC
    return size <= MAX_LENGTH or _balanced_divisor(size) is not None


def is_dynamic_length(size: Size) -> bool:
    """Return whether the length of a transform is a dynamic size."""
    return not isinstance(expression(size), int)


def _balanced_divisor(size: int) -> int | None:
    """Return a length's divisor up to ``MAX_LENGTH`` nearest to its square root; None if no split is possible."""
    found = [d for d in range(2, MAX_LENGTH + 1) if size % d == 0]
    divisor = min(found, key=lambda d: abs(math.log(d * d / size)), default=None)
    return divisor if divisor is not None and is_supported_length(size // divisor) else None


def _transform_along(z: Argument, dim: int, forward: bool) -> Pair:
    """Return the unnormalized transform of a pair or a real tensor along a dim."""
    last = _map_pair(z, lambda p: p.movedim(dim, -1))
    return Pair(*(p.movedim(-1, dim) for p in _transform_last_dim(last, -1 if forward else 1)))


def _transform_last_dim(z: Argument, sign: int) -> Argument:
    """Return the unnormalized Fourier transform along the last dim, with angles of this sign (-1: forward). A long dim
    is split into dims (a, b), which are transformed one after the other (Cooley and Tukey)."""
    like = z.real if isinstance(z, Pair) else z
    size = like.shape[-1]
    if is_dynamic_length(size) or size <= MAX_LENGTH:
        return complex_matmul(z, _root_matrix(size, size, size, sign, like))
    a = _balanced_divisor(size)
    assert a is not None
    b = size // a
    apart = _map_pair(z, lambda p: p.unflatten(-1, (a, b)).mT)
    turned = multiply(_transform_last_dim(apart, sign), _root_matrix(size, b, a, sign, like))
    return _map_pair(_transform_last_dim(_map_pair(turned, lambda p: p.mT), sign), lambda p: p.mT.flatten(-2))


def _map_pair(z: Argument, function: Target) -> Argument:
    """Apply a function to the real and to the imaginary part of a pair, or to ``z`` itself if it is a real tensor."""
    return Pair(*map(function, z)) if isinstance(z, Pair) else function(z)


def _root_matrix(order: Size, rows: Size, columns: Size, sign: int, like: torch.Tensor) -> Pair:
    """Return the matrix whose element (row, column) is the ``order``-th root of unity to the power ``sign * row *
    column``, in the dtype of ``like``."""
    powers = torch.outer(*(torch.arange(n, device=like.device) for n in (rows, columns))).remainder(order)
    if is_dynamic_length(order):
        cos, sin = _roots_of_unity(order, like)
        return Pair(cos[powers], sign * sin[powers])
    turns = powers.double() * (2 * math.pi / order)
    return Pair(turns.cos().to(like.dtype), (sign * turns.sin()).to(like.dtype))


def _roots_of_unity(order: Size, like: torch.Tensor) -> Pair:
    """Return all powers of the ``order``-th root of unity, in the dtype of ``like``. Each angle is reduced to at most
    an eighth of a turn plus a number of quarters, since float32 is too coarse for angles near a full turn."""
    powers = torch.arange(order, device=like.device) * 4
    quarters = (powers + order // 2) // order
    angles = (powers - quarters * order).float() / order * (math.pi / 2)
    cos, sin, is_odd = angles.cos(), angles.sin(), quarters % 2 == 1
    cos, sin = torch.where(is_odd, sin, cos), torch.where(is_odd, cos, sin)
    cos, sin = torch.where((quarters + 1) % 4 >= 2, -cos, cos), torch.where(quarters % 4 >= 2, -sin, sin)
    return Pair(cos.to(like.dtype), sin.to(like.dtype))


def _complete_spectrum(half_spectrum: Pair, dim: int, size: int) -> Pair:
    """Return the complete spectrum of a real signal from the first half of the spectrum."""
    count = size // 2 + 1
    first = Pair(*(p.narrow(dim, 0, count) for p in half_spectrum))
    rest = Pair(*(p.narrow(dim, 1, size - count).flip(dim) for p in half_spectrum))
    return Pair(torch.cat([first.real, rest.real], dim), torch.cat([first.imag, -rest.imag], dim))


def _real_inverse_of_half_spectrum(z: Pair, dim: int, length: Size) -> Pair:
    """Return the real inverse transform of half of a spectrum. Terms with a mirror image count twice."""
    z = Pair(*(p.movedim(dim, -1) for p in z))
    half = z.real.shape[-1]
    places = torch.arange(half, device=z.real.device)
    weights = torch.where((places == 0) | (places * 2 == length), 1.0, 2.0).to(z.real.dtype)
    cos, sin = _root_matrix(length, half, length, 1, z.real)
    real = (z.real * weights) @ cos - (z.imag * weights) @ sin
    return Pair(real.movedim(-1, dim), 0.0)


def _normalize(z: Pair, normalization: int, sizes: Sequence[Size]) -> Pair:
    """Normalize ``z``, a Fourier transform over dims of these sizes, whose product is n: return ``z`` if
    ``normalization`` is 0, ``z / sqrt(n)`` if it is 1, ``z / n`` if it is 2."""
    count: Size = math.prod(sizes)
    if normalization == 0:
        return z
    if is_dynamic_length(count):
        count = torch.full((), count, dtype=torch.float32, device=z.real.device)
    factor = count ** {1: -0.5, 2: -1.0}[normalization]
    return Pair(z.real * factor, z.imag * factor)
