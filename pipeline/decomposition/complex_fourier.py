"""Fourier transforms on pairs of reals, as products with matrices of roots of unity.

TensorRT has no Fourier transform. A length of at most ``LARGEST`` is one product; a longer one is split into two
factors, and transforms of these lengths with a rotation between them (Cooley and Tukey), so that no matrix is larger
than ``LARGEST`` by ``LARGEST``. The matrices are constants, made in float64: a length must be known when compiling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from pipeline.aten.types import Argument, Target
from pipeline.decomposition.complex_pairs import Pair, bilinear, times

LARGEST = 256
"""The longest transform that is one product; prime factors of a length may be as large."""

product = bilinear(torch.matmul)


def complex_to_complex(z: Pair, dim: Sequence[int], normalization: int, forward: bool) -> Argument:
    """aten._fft_c2c"""
    sizes = [z.real.shape[d] for d in dim]
    if not all(map(is_taken, sizes)):
        return NotImplemented
    for d in dim:
        z = _along(z, d, forward)
    return _scaled(z, normalization, sizes)


def real_to_complex(x: torch.Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Argument:
    """aten._fft_r2c; the last of the dims is transformed first, and halved if ``onesided``."""
    sizes = [x.shape[d] for d in dim]
    if not all(map(is_taken, sizes)):
        return NotImplemented
    z = _along(x, dim[-1], forward=True)
    if onesided:
        z = Pair(*(part.narrow(dim[-1], 0, sizes[-1] // 2 + 1) for part in z))
    for d in dim[:-1]:
        z = _along(z, d, forward=True)
    return _scaled(z, normalization, sizes)


def complex_to_real(z: Pair, dim: Sequence[int], normalization: int, last_dim_size: int) -> Argument:
    """aten._fft_c2r: the last of the dims has half of a spectrum with Hermitian symmetry."""
    sizes = [*(z.real.shape[d] for d in dim[:-1]), last_dim_size]
    if not all(map(is_taken, sizes)):
        return NotImplemented
    for d in dim[:-1]:
        z = _along(z, d, forward=False)
    whole = _along(_mirrored(z, dim[-1], last_dim_size), dim[-1], forward=False)
    return _scaled(whole, normalization, sizes).real


def is_taken(size: object) -> bool:
    """Whether a length is supported: known, with no prime factor above ``LARGEST``."""
    return isinstance(size, int) and (size <= LARGEST or _factor(size) is not None)


def _factor(size: int) -> int | None:
    """The divisor, at most ``LARGEST``, nearest to the root; None if the rest of the length has none."""
    found = [d for d in range(2, LARGEST + 1) if size % d == 0]
    divisor = min(found, key=lambda d: abs(math.log(d * d / size)), default=None)
    return divisor if divisor is not None and is_taken(size // divisor) else None


def _along(z: Argument, dim: int, forward: bool) -> Pair:
    """The transform along a dim, of a pair or of a real tensor, without a factor."""
    last = Pair(*(p.movedim(dim, -1) for p in z)) if isinstance(z, Pair) else z.movedim(dim, -1)
    return Pair(*(p.movedim(-1, dim) for p in _last(last, -1 if forward else 1)))


def _last(z: Argument, sign: int) -> Argument:
    """The transform along the last dim, which is split into (a, b) if it is long: of what is b apart, then of these."""
    like = z.real if isinstance(z, Pair) else z
    size = like.shape[-1]
    if size <= LARGEST:
        return product(z, _roots(size, size, size, sign, like))
    a = _factor(size)
    assert a is not None
    b = size // a
    apart = _each(z, lambda p: p.unflatten(-1, (a, b)).mT)
    turned = times(_last(apart, sign), _roots(size, b, a, sign, like))
    return _each(_last(_each(turned, lambda p: p.mT), sign), lambda p: p.mT.flatten(-2))


def _each(z: Argument, function: Target) -> object:
    return Pair(*map(function, z)) if isinstance(z, Pair) else function(z)


def _roots(size: int, rows: int, columns: int, sign: int, like: torch.Tensor) -> Pair:
    """The size-th root of unity to the powers row times column."""
    places = [torch.arange(n, device=like.device) for n in (rows, columns)]
    turns = torch.outer(*places).remainder(size).double() * (2 * math.pi / size)
    return Pair(turns.cos().to(like.dtype), (sign * turns.sin()).to(like.dtype))


def _mirrored(z: Pair, dim: int, size: int) -> Pair:
    """The whole spectrum of real numbers, of which ``z`` is the first half."""
    half = size // 2 + 1
    first = Pair(*(p.narrow(dim, 0, half) for p in z))
    rest = Pair(*(p.narrow(dim, 1, size - half).flip(dim) for p in z))
    return Pair(torch.cat([first.real, rest.real], dim), torch.cat([first.imag, -rest.imag], dim))


def _scaled(z: Pair, normalization: int, sizes: Sequence[int]) -> Pair:
    """Divided by nothing, by the root of the number of elements, or by that number."""
    factor = math.prod(sizes) ** {0: 0.0, 1: -0.5, 2: -1.0}[normalization]
    return z if normalization == 0 else Pair(z.real * factor, z.imag * factor)
