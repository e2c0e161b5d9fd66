"""Error bounds: compare an output with eager's and with the exact output; decide whether its error is too large."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

import torch
from attrs import evolve, frozen

from pipeline.aten.types import Leaf
from pipeline.records.agreement import OutputAgreement

MULTIPLE: Final = 4.0
"""The default factor by which a program's error may exceed eager's own in the same dtypes."""

Products = Literal["cpu", "ieee", "tf32"]
"""The arithmetic of float32 matmuls: that of the reference executor, or on a GPU float32 or TF32."""


def products_of(executor: str, tf32: bool) -> Products:
    """Return how an executor computes matmuls in float32."""
    return "cpu" if executor == "reference" else "tf32" if tf32 else "ieee"


FLOAT32: Final[Mapping[Products, float]] = {"cpu": 32 * 2.0**-23, "ieee": 256 * 2.0**-23, "tf32": 5 * 2.0**-10}
"""The floor in float32, where some forty operators round one after another. On a GPU TensorRT sums in an order of its
own: an IEEE convolution has 1e-6 on RTX 1.6.1, and 2e-5 after ResNet-50's 53. In TF32 it cuts digits off where PyTorch
rounds: 8e-4 a convolution, all to one side, and 3.3e-3 after ResNet-50's, where eager with TF32 has 3e-4
(docs/tensorrt.md)."""

SHARE: Final = 0.25
"""The share of roundings beyond the bound from which an output is taken to depend on discrete choices."""

MORE: Final = 1.25
"""The factor by which ours may exceed such a rounding, in elements beyond the bound and in error."""

HALVES: Final = 4
"""The floor in halves: units in the last place at the output's largest magnitude. Few operators round in a row."""

NORMS: Final[Mapping[Products, float]] = {"cpu": 8 * 2.0**-23, "ieee": FLOAT32["ieee"], "tf32": 4 * 2.0**-10}
"""The least bound of the norm of errors in float32. No norm was measured on a GPU: in TF32 it is between the largest
errors of a network that is right (ResNet-50: 3.3e-3) and of one that is wrong (DPT on RTX 1.4: 5.7e-3)."""

NORM_OF_HALVES: Final = 0.5
"""The same in halves, in units in the last place: four times the error of a single rounding."""

ENOUGH: Final = 64
"""The fewest elements whose norm is judged: the ratio of the norms of a few errors is chance."""


@frozen
class Bound:
    """The bounds of an output's largest error (relative to the largest magnitude) and of the norm of its errors: a
    multiple of eager's error, plus a floor or at least a floor."""

    dtype: torch.dtype
    products: Products = "cpu"
    multiple: float = MULTIPLE

    @property
    def floor(self) -> float:
        """The error that is allowed even if eager is exact."""
        return HALVES * torch.finfo(self.dtype).eps if self.dtype.itemsize < 4 else FLOAT32[self.products]

    def of(self, eager_error: float) -> float:
        """Return the bound, given eager's error."""
        return self.multiple * eager_error + self.floor

    @property
    def least_norm(self) -> float:
        """The norm of errors that is allowed even if eager is exact."""
        halves = self.dtype.itemsize < 4
        return NORM_OF_HALVES * torch.finfo(self.dtype).eps if halves else NORMS[self.products]

    def of_norm(self, eager_norm: float) -> float:
        """Return the bound of the norm of errors, given eager's; half-precision sums have 5 to 20 times that norm."""
        return max(self.multiple * eager_norm, self.least_norm)


@frozen
class Varied:
    """The part of an output that depends on rounding: a mask of the elements, and the range of floats, or the set of
    integers or bools, to which other roundings lead."""

    mask: torch.Tensor
    values: torch.Tensor

    def explains(self, ours: torch.Tensor, errors: torch.Tensor, bound: float, size: float) -> torch.Tensor:
        """Return a mask of the elements that another rounding explains, independent of their errors."""
        mask = self.mask.to(ours.device)
        if mask.shape != ours.shape:
            return torch.zeros_like(ours, dtype=torch.bool)
        if not ours.is_floating_point():
            return mask & torch.isin(ours, self.values.to(ours.device))
        low, high = float(self.values.min()) - bound * size, float(self.values.max()) + bound * size
        return mask & (ours >= low) & (ours <= high)


@frozen
class Drawn:
    """The spread of a floating-point output under random roundings, each by at most half a unit in the last place.

    low, high: the range of each element. draws: for each random rounding, the number of elements beyond the bound and
        the largest error. norms: for each rounding, the norm of its errors.
    """

    low: torch.Tensor
    high: torch.Tensor
    draws: tuple[tuple[int, float], ...] = ()
    norms: tuple[float, ...] = ()

    def with_one(self, value: torch.Tensor, exact: torch.Tensor, bound: float) -> Drawn:
        """Return the spread with the results of a further rounding, whose infinities and NaNs are ignored."""
        errors = _errors(value, exact, exact, scale(exact))
        known = torch.where(value.isfinite() & exact.isfinite(), value, exact)
        drawn = int((errors > bound).sum()), largest(errors[errors.isfinite()])
        norms = (*self.norms, norm_of(value - exact, exact))
        return Drawn(torch.fmin(self.low, known), torch.fmax(self.high, known), (*self.draws, drawn), norms)

    def norm_bound(self, bound: float) -> float:
        """Return the bound of the norm of errors: ``bound``, or, if `SHARE` of the roundings exceed it, `MORE` times
        the largest norm of a rounding."""
        chance = sum(norm > bound for norm in self.norms) >= max(1, SHARE * len(self.norms))
        return MORE * max(self.norms) if chance else bound

    def explains(self, ours: torch.Tensor, errors: torch.Tensor, bound: float, size: float) -> torch.Tensor:
        """Return a mask of the elements whose error is beyond the bound, but which are in their range, widened by the
        bound.

        If `SHARE` of the roundings are beyond the bound too, several discrete choices may depend on rounding, and each
        rounding chooses differently. Then rounding explains all elements that any rounding moves beyond the bound, if
        their number and their largest error are at most `MORE` times those of a single rounding.
        """
        wrong, low, high = errors > bound, self.low.to(ours.device), self.high.to(ours.device)
        found = wrong & (ours >= low - bound * size) & (ours <= high + bound * size)
        moved = wrong & (high - low > bound * size)
        if sum(count > 0 for count, _ in self.draws) < SHARE * len(self.draws):
            return found
        many, most = int(moved.sum()), largest(errors[moved])
        alike = any(many <= MORE * count and most <= MORE * worst for count, worst in self.draws)
        return found | moved if alike else found


def judged(
    row: OutputAgreement,
    bound: Bound,
    ours: Leaf,
    eager: Leaf,
    exact: Leaf,
    varied: Callable[[], Iterable[Varied | Drawn]] = tuple,
) -> OutputAgreement:
    """Return the row with its errors.

    exact: the same output in a wider dtype; if None, eager is used instead. varied: a function that computes the parts
        of the exact output that change when matmuls are rounded differently; called only if the error is beyond the
        bound.
    """
    if not isinstance(eager, torch.Tensor) or not isinstance(ours, torch.Tensor):
        equal = type(ours) is type(eager) and bool(ours == eager or (ours != ours and eager != eager))
        return evolve(row, exact="eager", error=0.0 if equal else float("inf"), elements=1)
    if (ours.shape, ours.dtype) != (eager.shape, eager.dtype):
        return evolve(row, exact="eager", error=float("inf"), elements=eager.numel())
    known = isinstance(exact, torch.Tensor) and exact.shape == eager.shape
    known = known and (exact.is_floating_point(), exact.is_complex()) == (eager.is_floating_point(), eager.is_complex())
    row = evolve(row, exact=row.exact if known else "eager", elements=eager.numel())
    ours, eager, exact = (v.detach().to(eager.device) for v in (ours, eager, exact if known else eager))
    found = _measured(row, bound, ours, eager, exact, None)
    if found.holds or eager.is_complex():
        return found
    inexact = eager.is_floating_point()
    a, b, c = (_parts(v) for v in (ours, eager, exact))
    size = scale(c)
    errors = _errors(a, b, c, size) if inexact else (ours != exact).double()
    values = a if inexact else ours
    left_out = torch.zeros_like(eager, dtype=torch.bool)
    for each in varied():
        before = None
        while not found.holds and before != found.undecided:  # the bound shrinks without elements that eager gets wrong
            before, more = found.undecided, left_out | each.explains(values, errors, found.bound, size)
            if inexact and 2 * int(more.sum()) > more.numel():
                break  # the output is just sensitive to rounding
            left_out, found = more, _measured(row, bound, ours, eager, exact, more)
        if isinstance(each, Drawn) and found.norm_bound:
            found = evolve(found, norm_bound=each.norm_bound(found.norm_bound))
        if found.holds:
            break
    return found


def _measured(
    row: OutputAgreement,
    bound: Bound,
    ours: torch.Tensor,
    eager: torch.Tensor,
    exact: torch.Tensor,
    unstable: torch.Tensor | None,
) -> OutputAgreement:
    decided = torch.ones_like(eager, dtype=torch.bool) if unstable is None else ~unstable
    undecided = int(decided.numel() - decided.sum())
    if not (eager.is_floating_point() or eager.is_complex()):
        theirs, mine = ((v != exact) & decided for v in (eager, ours))
        wrong = mine & (ours != eager)  # eager's values are right as well: rounding decides them
        error, own = (float("inf") if bool(v.any()) else 0.0 for v in (wrong, theirs))
        return evolve(row, error=error, eager_error=own, undecided=undecided)
    a, b, c = (_parts(v) for v in (ours, eager, exact))
    decided = decided.unsqueeze(-1).expand(a.shape) if eager.is_complex() else decided
    own = own_error(b[decided], c[decided], scale(c))
    error = largest(_errors(a, b, c, scale(c))[decided])
    found = evolve(row, error=error, eager_error=own, bound=bound.of(own), undecided=undecided)
    if int(decided.sum()) < ENOUGH:
        return found
    ours_norm, eager_norm = (norm_of((v - c)[decided], c[decided]) for v in (a, b))
    return evolve(found, norm_error=ours_norm, eager_norm_error=eager_norm, norm_bound=bound.of_norm(eager_norm))


def _errors(ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, size: float) -> torch.Tensor:
    """Return relative errors; infinite where NaN or infinity is neither in eager's nor in the exact output."""
    same = (ours == eager) | (ours == exact) | (ours.isnan() & (eager.isnan() | exact.isnan()))
    odd = ~ours.isfinite() | ~exact.isfinite()
    gap = ((ours - exact).abs() / size).nan_to_num(float("inf"), float("inf"), float("inf"))
    return torch.where(odd, torch.where(same, 0.0, float("inf")), gap)


def _parts(t: torch.Tensor) -> torch.Tensor:
    """Convert to float64; complex numbers become pairs."""
    return torch.view_as_real(t.resolve_conj().to(torch.complex128)) if t.is_complex() else t.double()


def own_error(eager: torch.Tensor, exact: torch.Tensor, size: float) -> float:
    """Return eager's largest error, relative to ``size``; NaN and infinite errors count as 0."""
    return largest(((eager.double() - exact).abs() / size).nan_to_num(0.0, 0.0, 0.0))


def norm_of(errors: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the norm of errors over finite elements: relative to the exact output's norm, or absolute if it is 0."""
    finite = errors.isfinite() & exact.isfinite()
    norm, size = (float(torch.linalg.vector_norm(v[finite].double())) for v in (errors, exact))
    return norm / (size or 1.0)


def scale(t: torch.Tensor) -> float:
    """Return the largest finite magnitude, to which errors are relative; 1 if that is 0."""
    return largest(t[t.isfinite()]) or 1.0


def largest(t: torch.Tensor) -> float:
    """Return the largest magnitude; 0 for an empty tensor."""
    return float(t.abs().max()) if t.numel() else 0.0
