"""Error bounds: compare a program's output with eager's and the exact output, and decide if its error is too large."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

import torch
from attrs import evolve, frozen

from pipeline.aten.types import Leaf
from pipeline.records.agreement import OutputAgreement

MULTIPLE: Final = 4.0
"""The default factor by which a compiled program's error may exceed eager's error, in the same dtypes."""

MatmulPrecision = Literal["cpu", "ieee", "tf32"]
"""How float32 matmuls are computed: by the reference executor (``"cpu"``), or on a GPU as float32 or TF32."""


def matmul_precision(executor: str, tf32: bool) -> MatmulPrecision:
    """Return how an executor computes float32 matmuls; ``tf32``: whether they use TF32 on a GPU."""
    return "cpu" if executor == "reference" else "tf32" if tf32 else "ieee"


FLOAT32: Final[Mapping[MatmulPrecision, float]] = {"cpu": 32 * 2.0**-23, "ieee": 256 * 2.0**-23, "tf32": 5 * 2.0**-10}
"""The error that is allowed in float32 even if eager is exact, by how matmuls are computed. About forty operators round
one after another. On a GPU TensorRT adds in a different order: the error is 1e-6 for one IEEE convolution on RTX 1.6.1,
and 2e-5 after ResNet-50's 53 convolutions. In TF32 it truncates where PyTorch rounds: 8e-4 for one convolution, all
errors in one direction, and 3.3e-3 after ResNet-50's, where eager with TF32 has 3e-4 (docs/tensorrt.md)."""

SHARE: Final = 0.25
"""If this share of random roundings exceeds the error bound, an output is assumed to depend on discrete choices."""

SPREAD_FACTOR: Final = 1.25
"""The factor by which a program may exceed a random rounding, in elements beyond the bound and in error."""

HALVES: Final = 4
"""The error that is allowed in half precision even if eager is exact: units in the last place at the output's largest
magnitude. Few operators round one after another."""

NORMS: Final[Mapping[MatmulPrecision, float]] = {"cpu": 8 * 2.0**-23, "ieee": FLOAT32["ieee"], "tf32": 4 * 2.0**-10}
"""The norm of errors that is allowed in float32 even if eager is exact. No norm was measured on a GPU: for TF32 it is
between the largest errors of a correct network (ResNet-50: 3.3e-3) and a wrong one (DPT on RTX 1.4: 5.7e-3)."""

NORM_OF_HALVES: Final = 0.5
"""`NORMS` for half precision, in units in the last place: four times the norm after a single rounding."""

MIN_ELEMENTS: Final = 64
"""The minimum number of elements whose norm of errors is checked: for fewer, the ratio of norms is chance."""


@frozen
class Bound:
    """The bounds for the errors of an output that is computed in ``dtype``, given eager's errors.

    The largest error, relative to the output's largest magnitude, is at most ``multiple * eager's error + floor``. The
    norm of errors, relative to the output's norm, is at most ``max(multiple * norm of eager's errors, norm_floor)``.
    """

    dtype: torch.dtype
    products: MatmulPrecision = "cpu"
    multiple: float = MULTIPLE

    @property
    def floor(self) -> float:
        """The largest error that is allowed even if eager is exact."""
        return HALVES * torch.finfo(self.dtype).eps if self.dtype.itemsize < 4 else FLOAT32[self.products]

    def error_bound(self, eager_error: float) -> float:
        """Return the bound for an output's largest error, given eager's largest error."""
        return self.multiple * eager_error + self.floor

    @property
    def norm_floor(self) -> float:
        """Return the norm of the output's errors that is allowed even if eager is exact (see `NORMS`)."""
        halves = self.dtype.itemsize < 4
        return NORM_OF_HALVES * torch.finfo(self.dtype).eps if halves else NORMS[self.products]

    def norm_bound(self, eager_norm: float) -> float:
        """Return the bound for the norm of errors, given the norm of eager's errors."""
        return max(self.multiple * eager_norm, self.norm_floor)


@frozen
class UnstablePart:
    """The elements of an output that depend on rounding (a mask), and the values that they have under other roundings:
    the range of floats, or the set of integers or bools."""

    mask: torch.Tensor
    values: torch.Tensor

    def explained_elements(self, ours: torch.Tensor, errors: torch.Tensor, bound: float, scale: float) -> torch.Tensor:
        """Return a mask of the unstable elements of ``ours`` that have one of ``values``; a float may be anywhere in
        their range, widened by ``bound * scale``. ``scale``: the exact output's largest magnitude. ``errors`` is only
        for `Spread.explained_elements`, which has the same parameters."""
        mask = self.mask.to(ours.device)
        if mask.shape != ours.shape:
            return torch.zeros_like(ours, dtype=torch.bool)
        if not ours.is_floating_point():
            return mask & torch.isin(ours, self.values.to(ours.device))
        low, high = float(self.values.min()) - bound * scale, float(self.values.max()) + bound * scale
        return mask & (ours >= low) & (ours <= high)


@frozen
class Spread:
    """The ranges and errors of a float output over runs of eager with random rounding errors of at most half a unit.

    low, high: the least and the greatest value of each element. draws: for each run, the number of elements whose error
        exceeds the output's error bound, and the largest error. norms: for each run, the norm of its errors.
    """

    low: torch.Tensor
    high: torch.Tensor
    draws: tuple[tuple[int, float], ...] = ()
    norms: tuple[float, ...] = ()

    def add_run(self, value: torch.Tensor, exact: torch.Tensor, bound: float) -> Spread:
        """Return the spread extended by one more run, whose output is ``value``. ``exact``: the output without random
        errors, against which errors are measured; ``draws`` counts those above ``bound``."""
        errors = _relative_errors(value, exact, exact, largest_finite(exact))
        known = torch.where(value.isfinite() & exact.isfinite(), value, exact)
        drawn = int((errors > bound).sum()), largest_magnitude(errors[errors.isfinite()])
        norms = (*self.norms, relative_norm(value - exact, exact))
        return Spread(torch.fmin(self.low, known), torch.fmax(self.high, known), (*self.draws, drawn), norms)

    def norm_bound(self, bound: float) -> float:
        """Return the bound for the norm of a program's errors: ``bound``, unless at least a share `SHARE` of the runs
        have a larger norm; then the largest norm of a run times `SPREAD_FACTOR`."""
        chance = sum(norm > bound for norm in self.norms) >= max(1, SHARE * len(self.norms))
        return SPREAD_FACTOR * max(self.norms) if chance else bound

    def explained_elements(self, ours: torch.Tensor, errors: torch.Tensor, bound: float, scale: float) -> torch.Tensor:
        """Return a mask of the elements of ``ours`` whose error exceeds the bound, but that random rounding explains:
        they are between ``low`` and ``high``, widened by ``bound * scale``.

        If at least a share `SHARE` of the runs exceed the bound too, discrete choices (such as ``argmax``) may depend
        on rounding, and each run chooses differently. Then elements whose range is wider than the bound are explained
        as well, if one run has similar errors: as many and as large, up to the factor `SPREAD_FACTOR`.

        errors: of ``ours``, relative to ``scale``, the exact output's largest magnitude. bound: the largest allowed.
        """
        wrong, low, high = errors > bound, self.low.to(ours.device), self.high.to(ours.device)
        found = wrong & (ours >= low - bound * scale) & (ours <= high + bound * scale)
        moved = wrong & (high - low > bound * scale)
        if sum(count > 0 for count, _ in self.draws) < SHARE * len(self.draws):
            return found
        many, most = int(moved.sum()), largest_magnitude(errors[moved])
        alike = any(many <= SPREAD_FACTOR * count and most <= SPREAD_FACTOR * worst for count, worst in self.draws)
        return found | moved if alike else found


def measure_errors(
    row: OutputAgreement,
    bound: Bound,
    ours: Leaf,
    eager: Leaf,
    exact: Leaf,
    unstable_parts: Callable[[], Iterable[UnstablePart | Spread]] = tuple,
) -> OutputAgreement:
    """Measure the errors of an output, ``ours``; return ``row``, a record of the output's name and sample, with errors
    and bounds filled in.

    exact: the same output in a wider dtype; if None, eager is used instead. unstable_parts: a function that yields
        records of elements that depend on rounding. It is called only if the error is beyond the bound; elements whose
        values the records explain are then left out.
    """
    if not isinstance(eager, torch.Tensor) or not isinstance(ours, torch.Tensor):
        equal = type(ours) is type(eager) and bool(ours == eager or (ours != ours and eager != eager))
        return evolve(row, exact="eager", error=0.0 if equal else float("inf"), elements=1)
    if (ours.shape, ours.dtype) != (eager.shape, eager.dtype):
        return evolve(row, exact="eager", error=float("inf"), elements=eager.numel())
    comparable = isinstance(exact, torch.Tensor) and exact.shape == eager.shape
    comparable = comparable and all(kind(exact) == kind(eager) for kind in (torch.is_floating_point, torch.is_complex))
    row = evolve(row, exact=row.exact if comparable else "eager", elements=eager.numel())
    ours, eager, exact = (v.detach().to(eager.device) for v in (ours, eager, exact if comparable else eager))
    result = _add_errors(row, bound, ours, eager, exact, None)
    if result.holds or eager.is_complex():
        return result
    inexact = eager.is_floating_point()
    a, b, c = (_as_float64(v) for v in (ours, eager, exact))
    scale = largest_finite(c)
    errors = _relative_errors(a, b, c, scale) if inexact else (ours != exact).double()
    values = a if inexact else ours
    explained = torch.zeros_like(eager, dtype=torch.bool)
    for part in unstable_parts():
        before = None
        # the bound shrinks without elements that eager gets wrong
        while not result.holds and before != result.undecided:
            before, more = result.undecided, explained | part.explained_elements(values, errors, result.bound, scale)
            if inexact and 2 * int(more.sum()) > more.numel():
                break  # the output is just sensitive to rounding
            explained, result = more, _add_errors(row, bound, ours, eager, exact, more)
        if isinstance(part, Spread) and result.norm_bound:
            result = evolve(result, norm_bound=part.norm_bound(result.norm_bound))
        if result.holds:
            break
    return result


def _add_errors(
    row: OutputAgreement,
    bound: Bound,
    ours: torch.Tensor,
    eager: torch.Tensor,
    exact: torch.Tensor,
    unstable_mask: torch.Tensor | None,
) -> OutputAgreement:
    """Return ``row`` with our and eager's errors and the bounds filled in; masked elements are not measured."""
    decided = torch.ones_like(eager, dtype=torch.bool) if unstable_mask is None else ~unstable_mask
    undecided = int(decided.numel() - decided.sum())
    if not (eager.is_floating_point() or eager.is_complex()):
        theirs, mine = ((v != exact) & decided for v in (eager, ours))
        wrong = mine & (ours != eager)  # eager's values are right as well: rounding decides them
        error, eager_error = (float("inf") if bool(v.any()) else 0.0 for v in (wrong, theirs))
        return evolve(row, error=error, eager_error=eager_error, undecided=undecided)
    a, b, c = (_as_float64(v) for v in (ours, eager, exact))
    decided = decided.unsqueeze(-1).expand(a.shape) if eager.is_complex() else decided
    eager_error = largest_error(b[decided], c[decided], largest_finite(c))
    error = largest_magnitude(_relative_errors(a, b, c, largest_finite(c))[decided])
    most = bound.error_bound(eager_error)
    result = evolve(row, error=error, eager_error=eager_error, bound=most, undecided=undecided)
    if int(decided.sum()) < MIN_ELEMENTS:
        return result
    ours_norm, eager_norm = (relative_norm((v - c)[decided], c[decided]) for v in (a, b))
    return evolve(result, norm_error=ours_norm, eager_norm_error=eager_norm, norm_bound=bound.norm_bound(eager_norm))


def _relative_errors(ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, scale: float) -> torch.Tensor:
    """Return errors relative to ``scale``; infinite where only ours is NaN or infinite."""
    same = (ours == eager) | (ours == exact) | (ours.isnan() & (eager.isnan() | exact.isnan()))
    odd = ~ours.isfinite() | ~exact.isfinite()
    gap = ((ours - exact).abs() / scale).nan_to_num(float("inf"), float("inf"), float("inf"))
    return torch.where(odd, torch.where(same, 0.0, float("inf")), gap)


def _as_float64(t: torch.Tensor) -> torch.Tensor:
    """Convert a tensor to float64; complex numbers become pairs of reals."""
    return torch.view_as_real(t.resolve_conj().to(torch.complex128)) if t.is_complex() else t.double()


def largest_error(eager: torch.Tensor, exact: torch.Tensor, scale: float) -> float:
    """Return the largest error of eager's output, relative to ``scale``; NaN and infinite errors count as 0."""
    return largest_magnitude(((eager.double() - exact).abs() / scale).nan_to_num(0.0, 0.0, 0.0))


def relative_norm(errors: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the norm of finite elements' errors, relative to the norm of the exact output; absolute if that is 0."""
    finite = errors.isfinite() & exact.isfinite()
    norm, scale = (float(torch.linalg.vector_norm(v[finite].double())) for v in (errors, exact))
    return norm / (scale or 1.0)


def largest_finite(t: torch.Tensor) -> float:
    """Return the largest finite magnitude of a tensor's elements, to which errors are relative; 1 if it is 0."""
    return largest_magnitude(t[t.isfinite()]) or 1.0


def largest_magnitude(t: torch.Tensor) -> float:
    """Return the largest magnitude of a tensor's elements; 0 for an empty tensor."""
    return float(t.abs().max()) if t.numel() else 0.0
