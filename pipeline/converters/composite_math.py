"""Decompose mathematical operators without a TensorRT layer to operators that have converters.
These are elementwise functions, losses that torch decomposes wrongly, distances, sums of products, and overlap-add.

Error and gamma functions become polynomials. Their coefficients were fitted to float64 values by weighted least
squares; each comment ends with the largest relative error. Half precision is computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce, wraps
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipeline.aten.types import Argument, aten
from pipeline.converters.decompositions import register_torch_trt_decomposition


@register_torch_trt_decomposition(aten.hypot.default)
def hypot(self: Tensor, other: Tensor) -> Tensor:
    dtype = torch.promote_types(self.dtype, other.dtype)
    a, b = (x.to(torch.float32 if dtype.itemsize == 2 else dtype).abs() for x in (self, other))
    most = torch.maximum(a, b)
    ratio = torch.minimum(a, b) / torch.where(most == 0, 1.0, most)
    length = most * (1 + ratio * ratio).sqrt()
    return torch.where((a == math.inf) | (b == math.inf), math.inf, length).to(dtype)


@register_torch_trt_decomposition(aten.ldexp.Tensor)
def ldexp(self: Tensor, other: Tensor) -> Tensor:
    return self * torch.pow(2.0, other)


@register_torch_trt_decomposition(aten.angle.default)
def angle(self: Tensor) -> Any:
    if self.is_complex():
        return NotImplemented
    result = torch.where(self < 0, math.pi, 0.0)
    return torch.where(self.isnan(), self, result).to(self.dtype) if self.is_floating_point() else result


@register_torch_trt_decomposition(aten.rrelu_with_noise_functional.default)
def rrelu(
    self: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Any:
    return NotImplemented if training else (aten.leaky_relu(self, (lower + upper) / 2), noise.clone())


@register_torch_trt_decomposition(aten.as_strided_scatter.default)
def as_strided_scatter(
    self: Tensor, src: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> Any:
    if not all(isinstance(s, int) for s in (*self.shape, *size, *stride, storage_offset or 0)):
        return NotImplemented
    at = torch.zeros((), dtype=torch.int64, device=self.device) + (storage_offset or 0)
    for dim, (count, step) in enumerate(zip(size, stride, strict=True)):
        steps = torch.arange(count, device=self.device) * step
        at = at + steps.reshape([-1 if d == dim else 1 for d in range(len(size))])
    return self.reshape(-1).scatter(0, at.reshape(-1), src.reshape(-1)).reshape(self.shape)


MEAN = 1


@register_torch_trt_decomposition(aten.multilabel_margin_loss.default)
def multilabel_margin_loss(self: Tensor, target: Tensor, reduction: int = MEAN) -> Argument:
    return multilabel_margin_loss_forward(self, target, reduction)[0]


@register_torch_trt_decomposition(aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss_forward(self: Tensor, target: Tensor, reduction: int) -> tuple[Argument, Tensor]:
    """multilabel_margin_loss_forward(Tensor self, Tensor target, int reduction) -> (Tensor output, Tensor is_target).
    Labels of a row after its first negative one are ignored; torch 2.13 wrongly adds margins of label 0 for them."""
    scores, labels = torch.atleast_2d(self), torch.atleast_2d(target)
    classes = scores.shape[-1]
    place = torch.arange(classes, device=self.device)
    end = torch.where(labels < 0, place, classes).amin(-1, keepdim=True)
    given = place < end
    label = torch.where(given, labels, 0)
    is_target = (given.unsqueeze(-1) & (label.unsqueeze(-1) == place)).any(1)
    margins = (1 - scores.gather(-1, label).unsqueeze(-1) + scores.unsqueeze(1)).clamp(min=0)
    counted = given.unsqueeze(-1) & ~is_target.unsqueeze(1)
    loss = torch.where(counted, margins, 0).sum((1, 2)) / classes
    if reduction:
        loss = loss.mean() if reduction == MEAN else loss.sum()
    return loss, is_target.to(self.dtype).reshape(self.shape)


def _norm_of_difference(difference: Tensor, p: float) -> Tensor:
    """Return the p-norm of vectors along the last dim, as cdist and pdist define it: 0 if the dim is empty."""
    if difference.shape[-1] == 0:
        return difference.sum(-1)
    if p == 0:
        return (difference != 0).sum(-1).to(difference.dtype)
    if p == 1:
        return difference.abs().sum(-1)
    if p == 2:
        return (difference * difference).sum(-1).sqrt()
    if math.isinf(p):
        return difference.abs().amax(-1)
    return difference.abs().pow(p).sum(-1).pow(1 / p)


@register_torch_trt_decomposition(aten._cdist_forward.default)
def cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    return _norm_of_difference(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


@register_torch_trt_decomposition(aten._euclidean_dist.default)
def euclidean_dist(x1: Tensor, x2: Tensor) -> Tensor:
    return cdist(x1, x2, 2.0, None)


@register_torch_trt_decomposition(aten._pdist_forward.default)
def pdist(self: Tensor, p: float = 2.0) -> Tensor:
    rows = self.shape[0]
    first, second = torch.triu_indices(rows, rows, 1, device=self.device).unbind(0)
    return _norm_of_difference(self.index_select(0, first) - self.index_select(0, second), p)


@register_torch_trt_decomposition(aten._trilinear.default)
def trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    a, b, c = (reduce(torch.unsqueeze, dims, x) for x, dims in ((i1, expand1), (i2, expand2), (i3, expand3)))
    product = a * b * c
    return product.sum(list(sumdim)) if sumdim else product


@register_torch_trt_decomposition(aten.addbmm.default)
def addbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if not (self.is_floating_point() or self.is_complex()):
        beta, alpha = int(beta), int(alpha)  # as eager does for integers
    product = batch1.transpose(0, 1).flatten(1) @ batch2.flatten(0, 1)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (self if beta == 1 else self * beta)


@register_torch_trt_decomposition(aten.unfold_backward.default)
def unfold_backward(grad_in: Tensor, input_sizes: list[int], dim: int, size: int, step: int) -> Tensor:
    """unfold_backward(Tensor grad_in, SymInt[] input_sizes, int dim, int size, int step) -> Tensor

    Add overlapping windows, as the last part of ``istft``. Windows are cut into pieces of the length ``step``. Pieces
    at the same position in their windows do not overlap, so they form a row, and these rows are added. torch's own
    decomposition adds one element of the windows at a time.
    """
    if not input_sizes:
        return grad_in.squeeze(0)
    dim %= len(input_sizes)
    pieces = -(-size // step)
    windows = pad(grad_in.movedim(dim, -2), (0, pieces * step - size))
    *others, count, _ = windows.shape
    windows = windows.reshape(*others, count, pieces, step)
    rows = [windows.select(-2, piece).reshape(*others, count * step) for piece in range(pieces)]
    total = reduce(torch.add, (pad(row, (i * step, (pieces - i) * step)) for i, row in enumerate(rows)))
    return total.narrow(-1, 0, input_sizes[dim]).movedim(-1, dim).expand(input_sizes)


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


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
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
    return polynomial((x - 4) / (x + 4), ERFCX) / (1 + 2 * x)


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
    centre, tail = polynomial(w - 2.5, ERFINV_CENTRE), polynomial(w.sqrt() - 3, ERFINV_TAIL)
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
    small = first * second * polynomial(second, LGAMMA) - torch.where(low, x, 1.0).log()
    far = near.clamp(min=3.0)
    inverse = 1 / far
    square = inverse * inverse
    series = inverse * polynomial(square, (1 / 12, -1 / 360, 1 / 1260))
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
    series = inverse / 2 + square * polynomial(square, (1 / 12, -1 / 120, 1 / 252))
    above = (x + STEPS).log() - series - steps
    from_whole = self - self.round()
    mirrored = above - math.pi / (from_whole * math.pi).tan()
    below = torch.where(from_whole == 0, math.nan, mirrored)
    return torch.where(self > 0, above, torch.where(self == 0, -1 / self, below))
