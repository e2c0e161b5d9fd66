"""Reference results of a sample input: eager's and exact ones, computed once to compare many compiled programs with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Final

import torch
from attrs import evolve, field, frozen

from pipeline.aten.op_predicates import has_no_dropout, has_randomness
from pipeline.aten.types import Leaf
from pipeline.errors import PipelineError
from pipeline.program import Program
from pipeline.records.agreement import OutputAgreement
from pipeline.verification.bounds import (
    Bound,
    Spread,
    UnstablePart,
    largest_error,
    largest_finite,
    matmul_precision,
    measure_errors,
)
from pipeline.verification.eager import EagerRun, output_ancestors, use_tf32
from pipeline.verification.samples import Sample

TRIES: Final = 6
"""The number of runs with random errors in matmuls, which show the elements that depend on rounding."""

ROUNDINGS: Final = 12
"""The number of runs with random rounding errors of at most half a unit, which show the spread of each element."""

FLIPS: Final = 32.0
"""A float whose change exceeds this multiple of the rounding error depends on a discrete choice; all others change by a
few times that error."""

POSTPONED: Final = ("smallest", "largest")
"""The samples (by size) whose exact results are computed only on demand, since float64 is slow."""


@frozen(slots=False)
class Reference:
    """The results in PyTorch of one sample input, with which a compiled program's results are compared.

    eager: the outputs in the model's own dtypes. exact: the outputs in float64 or, if that fails for a model in half
        precision, in float32; None if no wider dtype runs. bounds: the error bound of each output.

    ``exact`` is computed when it is first read if the sample's name is in `POSTPONED`, since float64 is slow.
    """

    sample: Sample
    source: Program
    parameters: Mapping[str, torch.Tensor] = field(eq=False, repr=False)
    device: torch.device
    inputs: tuple[Leaf, ...] = field(eq=False, repr=False)
    eager: tuple[Leaf, ...] = field(eq=False, repr=False)
    bounds: tuple[Bound, ...]

    @classmethod
    def compute(
        cls,
        sample: Sample,
        source: Program,
        parameters: Mapping[str, torch.Tensor],
        device: torch.device,
        tf32: bool,
        bounds: tuple[Bound, ...],
    ) -> Reference:
        """Compute a sample's results in eager and in the widest dtype that runs; the latter only on demand if the
        sample's name is in `POSTPONED`. ``bounds``: the result of `output_bounds`.

        Raises:
            NotComparableError: eager does not accept the inputs.
        """
        with use_tf32(tf32):
            leaves, eager = _run_eager(sample, source, parameters, device)
        reference = cls(sample, source, parameters, device, leaves, eager, bounds)
        if sample.name not in POSTPONED:
            _ = reference.exact  # now, while no engine is in the GPU's memory
        return reference

    @property
    def exact(self) -> tuple[Leaf, ...] | None:
        """The outputs in a wider dtype than the model's own, float64 or float32; None if no such dtype runs."""
        return self._exact_and_dtype[0]

    @cached_property
    def _exact_and_dtype(self) -> tuple[tuple[Leaf, ...] | None, str]:
        """Return ``exact`` and its dtype's name; None and ``"eager"`` if no wider dtype than the model's own runs."""
        with use_tf32(False):
            return _run_in_widest_dtype(self.inputs, self.source, self.parameters, self.device, self.bounds)

    def measure_errors(self, row: OutputAgreement, output_index: int, ours: Leaf) -> OutputAgreement:
        """Measure the errors of a program's output ``ours``; return ``row`` with the errors filled in.

        For a sample in `POSTPONED`, ``ours`` is first compared with eager's output. If the two are close enough, then
        ``ours`` is within its bound whatever the exact output is, so the exact output is not computed.
        """
        # An output within the floor of eager's output is also within the bound for every exact output e: with eager's
        # error E and magnitudes S, |ours - e| <= floor * S(eager) + E <= floor * S(e) + (1 + floor) * E. So is a norm
        # of at most (1 - 1 / multiple) * norm_floor: with the norm N of eager's errors, their sum is at most
        # max(multiple * N, norm_floor).
        bound, eager = self.bounds[output_index], self.eager[output_index]
        if self.sample.name in POSTPONED and bound.multiple >= 1 + bound.floor:
            found = measure_errors(row, bound, ours, eager, None)
            if found.holds and found.norm_error <= (1 - 1 / bound.multiple) * found.norm_bound:
                return found
        exact = None if self.exact is None else self.exact[output_index]
        row = evolve(row, exact=self._exact_and_dtype[1])
        return measure_errors(row, bound, ours, eager, exact, partial(self.unstable_parts, output_index))

    def unstable_parts(self, output_index: int) -> Iterator[UnstablePart | Spread]:
        """Yield what is known about an output's elements that depend on rounding: an `UnstablePart` if elements depend
        on discrete choices (such as ``argmax`` or ``round``), then the `Spread` of the whole output if it is float."""
        if (flips := self._parts_of_discrete_choices[output_index]) is not None:
            yield flips
        if (drawn := self._rounding_spreads[output_index]) is not None:
            yield drawn

    @cached_property
    def _parts_of_discrete_choices(self) -> list[UnstablePart | None]:
        """Return, for each output, the elements that depend on discrete choices (such as ``argmax``) and their possible
        values; None for an output without such elements."""
        if self.exact is None:
            return [None] * len(self.eager)
        noise = max((bound.floor for bound in self.bounds), default=0.0) / 2
        runs = [self._run_with_noise(noise, seed) for seed in range(TRIES)]
        return [_unstable_part(exact, values, noise) for exact, *values in zip(self.exact, *runs, strict=True)]

    @cached_property
    def _rounding_spreads(self) -> list[Spread | None]:
        """Return, for each output, its spread over runs with random rounding errors; None if it is no float tensor."""
        if self.exact is None:
            return [None] * len(self.eager)
        limits = [_error_limit(*each) for each in zip(self.bounds, self.eager, self.exact, strict=True)]
        spreads = [None if limit is None else Spread(e, e) for limit, e in zip(limits, self.exact, strict=True)]
        try:
            for seed in range(TRIES, TRIES + ROUNDINGS):
                values = self._run_with_noise(self._largest_rounding_error, seed)
                spreads = [_add_rounding(*each) for each in zip(spreads, values, self.exact, limits, strict=True)]
        except RuntimeError:  # out of memory: rounding explains no more elements
            return [None] * len(self.eager)
        return spreads

    def _largest_rounding_error(self, dtype: torch.dtype) -> float:
        """Return the largest relative rounding error of a dtype; for float32 that of matmuls, which may use TF32."""
        if dtype == torch.float32 and any(bound.products == "tf32" for bound in self.bounds):
            return 2.0**-11
        return torch.finfo(dtype).eps / 2

    def _run_with_noise(self, noise: float | Callable[[torch.dtype], float], seed: int) -> tuple[Leaf, ...]:
        """Return the program's results in float64 with random errors added to results of operators that round."""
        return EagerRun(self.source, self.parameters, self.device, torch.float64, noise=noise, seed=seed)(self.inputs)


class NotComparableError(PipelineError):
    """Eager PyTorch cannot run a sample, so that a compiled program cannot be compared with it."""


def _run_eager(
    sample: Sample, source: Program, parameters: Mapping[str, torch.Tensor], device: torch.device
) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Run a sample in eager, with its alternative inputs if eager rejects the first; return inputs and results."""
    first: Exception | None = None
    try:
        for leaves in filter(None, (sample.leaves, sample.others)) if sample.leaves else ((),):
            try:
                return leaves, EagerRun(source, parameters, device)(leaves)
            except torch.OutOfMemoryError as error:
                raise NotComparableError(f"eager PyTorch ran out of memory: {_first_line(error)}") from error
            except Exception as error:
                first = first or error
        raise NotComparableError(f"eager PyTorch fails: {type(first).__name__}: {_first_line(first)}") from first
    finally:
        del first  # else it and this frame hold each other, and the tensors in its traceback


def _run_in_widest_dtype(
    leaves: Sequence[object],
    source: Program,
    parameters: Mapping[str, torch.Tensor],
    device: torch.device,
    bounds: Iterable[Bound],
) -> tuple[tuple[object, ...] | None, str]:
    """Run the program on ``leaves`` in float64; if that fails, in float32, but only if it computes in half precision
    (the ``dtype`` of a bound). Return results and the dtype's name; None and ``"eager"`` if nothing ran."""
    halves = any(bound.dtype != torch.float32 for bound in bounds)
    for dtype in (torch.float64, torch.float32) if halves else (torch.float64,):
        try:
            return EagerRun(source, parameters, device, dtype)(leaves), str(dtype).removeprefix("torch.")
        except Exception:  # no kernel for the dtype, or out of memory: try the next dtype
            continue
    return None, "eager"


def _first_line(error: BaseException | None) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def _error_limit(bound: Bound, eager: object, exact: object) -> float | None:
    """Return the largest allowed error of a floating-point output, given eager's error; None for other dtypes."""
    if not isinstance(eager, torch.Tensor) or not isinstance(exact, torch.Tensor) or exact.shape != eager.shape:
        return None
    if not exact.is_floating_point():
        return None
    return bound.error_bound(largest_error(eager, exact, largest_finite(exact)))


def _add_rounding(spread: Spread | None, value: Leaf, exact: Leaf, bound: float | None) -> Spread | None:
    """Return an output's spread, extended by one more run with random rounding errors. ``value``, ``exact``: the output
    of that run, and without random errors. ``bound``: the output's error bound. Return None if ``spread`` or ``bound``
    is None, or if the run's output has another shape."""
    if spread is None or bound is None or not isinstance(value, torch.Tensor) or value.shape != exact.shape:
        return None
    return spread.add_run(value, exact, bound)


def _unstable_part(exact: object, others: Sequence[Leaf], noise: float) -> UnstablePart | None:
    """Find the elements of an output that depend on discrete choices (such as ``argmax``): those that differ between
    ``exact`` and ``others``, the same output in runs with random errors (relative size: ``noise``). Return None if no
    element differs, or more than half of the floats: then the whole output is sensitive to rounding."""
    if not isinstance(exact, torch.Tensor) or exact.is_complex() or any(v.shape != exact.shape for v in others):
        return None
    if exact.is_floating_point():
        least = FLIPS * noise * largest_finite(exact)
        masks = [(value - exact).abs().nan_to_num(0.0) > least for value in others]
    else:
        masks = [value != exact for value in others]
    mask = torch.stack(masks).any(0)
    if not bool(mask.any()) or (exact.is_floating_point() and int(mask.sum()) * 2 > mask.numel()):
        return None
    return UnstablePart(mask, torch.cat([value[mask] for value in (exact, *others)]).unique())


def output_bounds(source: Program, device: torch.device, tf32: bool, multiple: float) -> tuple[Bound, ...]:
    """Return each output's bound, at least ``multiple`` times eager's error. ``tf32``: whether GPU matmuls use TF32."""
    products = matmul_precision("reference" if device.type == "cpu" else "tensorrt", tf32)
    return tuple(Bound(coarsest_dtype(above), products, multiple) for above in output_ancestors(source))


def coarsest_dtype(nodes: Iterable[torch.fx.Node]) -> torch.dtype:
    """Return the dtype with the coarsest rounding in which these nodes compute: float32, float16 or bfloat16."""
    values = (node.meta.get("val") for node in nodes)
    floats = {v.dtype for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()}
    known = floats & {torch.float32, torch.float16, torch.bfloat16}
    return max(known, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def random_outputs(program: Program) -> list[bool]:
    """Return, for each output, whether it depends on random numbers."""
    return [any(has_randomness(n) and not has_no_dropout(n) for n in above) for above in output_ancestors(program)]
