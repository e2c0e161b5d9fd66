"""choose: ``Compiled`` → ``Compiled``. Run operators in PyTorch if they are faster there on this GPU.

Before: any compiled program. After: its fastest variant. The variants are: the same program; the program with some
engines replaced by PyTorch; and the program before `decompose`, whose operators may be fewer and larger, completely in
PyTorch. If each engine is for one profile, the last variant instead runs matmuls by weights, and attention of many
queries or of one, in PyTorch. The reasons in ``coverage.fallback`` state both times. Small programs are not measured;
without a GPU none is. Ranks of a sharded model measure if ``measurements`` is a path, and choose the same variant.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Final, TypeAlias

import torch
from attrs import evolve, field, frozen
from torch.utils._pytree import tree_leaves

from pipeline.compiled import Compiled
from pipeline.compose.stage_signature import AnyStage
from pipeline.converters.declare import Rejection
from pipeline.errors import PipelineError
from pipeline.profiling.measure import Call
from pipeline.profiling.measurements import Keys, Measurements, Milliseconds, merge_slowest
from pipeline.profiling.segment_costs import SegmentCost, segment_costs
from pipeline.program import Program, make_port
from pipeline.runtime.collective_calls import collectives_by_profile, runs_without_ranks, without_communication
from pipeline.runtime.engine_load import is_for_this_gpu
from pipeline.runtime.program_engines import compiled_kernels, copy_cached_kernels
from pipeline.runtime.ranks import gather_from_ranks
from pipeline.stages.faster_in_torch import (
    TRIAL,
    combine_profiles,
    kinds_in_words,
    matmuls_in_torch,
    set_final_reason,
    to_try_in_torch,
)
from pipeline.stages.verify import STAGES
from pipeline.trt import has_gpu
from pipeline.verification.engines_in_torch import captured_program_in_torch, join_rejections, replace_engines
from pipeline.verification.samples import create_sample, tuned_sizes

log = logging.getLogger(__name__)

LARGE: Final = 256 << 20
"""The minimum bytes of a measured program's tensors: a GPU reads them in 60 µs. With ``torch_compile``: none."""
GROUPED: Final = 16 << 20
"""The minimum bytes for programs with grouped convolutions: TensorRT-RTX 1.6 may take nine times PyTorch's time."""
MARGIN: Final = 0.97
"""PyTorch replaces engines only if it takes less than this fraction of the engines' time."""
LEAST: Final = 0.1
"""PyTorch replaces engines only if it saves at least this many milliseconds per call."""
LEAST_OF_MANY: Final = 0.01
"""The minimum milliseconds to save with ``torch_compile``, for which the user accepts seconds of compilation, and in
calls of one profile, such as the decoder step of a language model, which runs for each token."""


ARRIVE, MEASURE = 60.0, 600.0
"""The seconds within which all ranks must have compiled a program, and then measured it; else it stays unchanged."""
VariantBuilder: TypeAlias = Callable[[Sequence[str]], Compiled | None]
"""The type of functions that return the variant of a program with these operators in PyTorch, or None if impossible."""
Timer: TypeAlias = Callable[[Sequence[Compiled], int | None], Sequence[Mapping[str, SegmentCost]]]
"""The type of functions that measure how long each segment of several programs takes on this GPU. They call all
programs with the same inputs, of the usual sizes or of a profile's sizes, and return each program's times by name."""


def measure_segments(
    programs: Sequence[Compiled],
    profile: int | None = None,
    measuring_context: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Sequence[Mapping[str, SegmentCost]]:
    """Measure on this GPU the cost of each program's segments, by segment name, at the sizes of a profile (None: at the
    optimal sizes). Ranks of a sharded model run without communication. All calls are in a ``measuring_context()``."""
    programs = [_with_engines_of_profile(without_communication(each), profile) for each in programs]
    program, cuda = programs[0].program, torch.device("cuda")
    calls = [Call(*create_sample(program, sizes).arguments(program, cuda)) for sizes in tuned_sizes(program, profile)]
    with torch.random.fork_rng(devices=[torch.cuda.current_device()]):  # operators may draw random numbers
        return segment_costs(programs, calls, measuring_context)


def _with_engines_of_profile(compiled: Compiled, profile: int | None) -> Compiled:
    """Return the program with only the segments that run in calls of a profile, and with its compiled kernels."""
    if profile is None:
        return compiled
    rows = zip(compiled.partitioned.engine_segments, compiled.networks, compiled.engines, strict=True)
    inside = [(network, engine) for segment, network, engine in rows if segment.runs_in(profile)]
    partitioned = compiled.partitioned
    partitioned = evolve(partitioned, segments=tuple(s for s in partitioned.segments if s.runs_in(profile)), cuts=())
    networks, engines = (tuple(column) for column in zip(*inside, strict=True)) if inside else ((), ())
    kernels = compiled_kernels(compiled)
    return evolve(compiled, partitioned=partitioned, networks=networks, engines=engines, kernels=kernels)


@frozen
class Choose:
    """The stage that chooses the fastest variant of a program. It is skipped with ``faster_in_torch=False``,
    ``load_built_engines=False`` or ``require_full_compilation``. If an engine and PyTorch take about the same time, two
    compilations may choose differently, unless the second reuses the measurements of the first.

    timer: measures the segments of programs.
    kept: stores measurements for later compilations, and for compilations without a GPU.
    earlier_stages: those of the pipeline, which compile variants; the pipeline sets them.
    """

    timer: Timer = field(default=measure_segments, repr=False)
    kept: Measurements = field(default=Measurements(), repr=False)
    earlier_stages: tuple[AnyStage, ...] = field(default=(), eq=False, repr=False, kw_only=True)
    name: str = field(default="choose", kw_only=True)

    def __call__(self, compiled: Compiled) -> Compiled:
        """Return the fastest variant of a program."""
        if not any(gather_from_ranks(compiled.program, _should_be_measured(compiled), ARRIVE)):
            return compiled
        fastest, form = compiled, cache(lambda names: self._build_other_variant(compiled, names))
        keys: Mapping[int | None, Keys] = {}
        pairs: Mapping[str, Milliseconds] = {}
        try:
            keys = _measurement_keys(compiled)
            pairs = self._times_by_key(compiled, keys, form)
        except Exception as error:  # no memory for all, or no inputs that it takes: the program is right as it is
            log.info("the program was not compared with PyTorch: %s", error)
        pairs = merge_slowest(gather_from_ranks(compiled.program, pairs, MEASURE))
        try:
            times = [Times.look_up(compiled, profile, own, pairs) for profile, own in keys.items()]
            fastest = self._fastest(compiled, times, form)
        except Exception as error:
            log.info("no other variant of the program was built: %s", error)
        torch.cuda.empty_cache()  # TensorRT cannot use memory that PyTorch's allocator holds
        return fastest

    def _fastest(self, compiled: Compiled, times: Sequence[Times], build_variant: VariantBuilder) -> Compiled:
        """Return the fastest variant of a program, given the measured times in each profile. ``build_variant`` compiles
        the variant with the named operators in PyTorch."""
        split = [t for t in times if t.other_variant_is_faster]
        by_profiles = _has_engine_per_profile(compiled)
        if not by_profiles and split == times:
            reason = join_rejections([t.why_torch("the program", t.whole) for t in times])
            log.warning("PyTorch is faster on this GPU and runs the whole program: %s", _totals(t.whole for t in times))
            return captured_program_in_torch(compiled, reason)
        split = split if by_profiles else []
        slower = _engines_to_replace(compiled, times, [t for t in times if t not in split])
        mixed = compiled
        if slower:
            which = f"{len(slower)} of {len(compiled.engines)} engines"
            said = _totals(pair for rows in slower.values() for _, pair in rows)
            log.warning("PyTorch is faster on this GPU and runs the operators of %s: %s", which, said)
            reasons = {
                n: join_rejections([t.why_torch("its engine", pair) for t, pair in rows]) for n, rows in slower.items()
            }
            mixed = replace_engines(compiled, reasons)
        forms = {t.profile or 0: mixed for t in times}
        for t in split:
            names = to_try_in_torch(compiled.program, t.profile)
            if (other := build_variant(names)) is not None:
                what = kinds_in_words(compiled.program, names)
                log.warning("PyTorch is faster on this GPU and runs the %s: %s", what, _totals([t.whole]))
                reason = t.why_torch("the program", t.whole, f"with {what} in PyTorch")
                forms[t.profile or 0] = set_final_reason(other, reason)
        if any(each is not mixed for each in forms.values()):
            mixed = combine_profiles(forms)
        if mixed is not compiled and _has_its_gpu(compiled):
            copy_cached_kernels(compiled, mixed)
        return mixed

    def _build_other_variant(self, compiled: Compiled, names: Sequence[str]) -> Compiled | None:
        """Return the other variant that is measured beside the program (see `Times`), or None if it cannot be compiled.
        ``names``: the operators that it runs in PyTorch if engines are for one profile each."""
        try:
            if _has_engine_per_profile(compiled):
                made = matmuls_in_torch(compiled, self.earlier_stages or STAGES, names)
            else:
                made = captured_program_in_torch(compiled, TRIAL)
            if collectives_by_profile(made) != collectives_by_profile(compiled):
                raise ValueError("in it, this rank would run collectives in another order than the other ranks")
        except (ValueError, PipelineError) as error:
            log.info("the variant with more operators in PyTorch is not measured: %s", error)
            return None
        return made

    def _times_by_key(
        self, compiled: Compiled, keys: Mapping[int | None, Keys], build_variant: VariantBuilder
    ) -> Mapping[str, Milliseconds]:
        """Return a program's measured times, each under its key in ``keys`` (by profile). Measure and store times that
        are not stored yet, if this machine has the program's GPU. ``build_variant`` compiles the other variant."""
        known = dict(self.kept.load(compiled.settings.compute_capabilities))
        for profile, own in keys.items() if _has_its_gpu(compiled) else ():
            times = Times.look_up(compiled, profile, own, known)
            if not (times.complete or times.other_variant_is_faster):
                found = self._measure(compiled, profile, own, build_variant(to_try_in_torch(compiled.program, profile)))
                self.kept.save(found)
                known = {**found, **known}
        every = {key for own in keys.values() for key in (own.program, *own.engines.values())}
        return {key: pair for key, pair in known.items() if key in every}

    def _measure(
        self, compiled: Compiled, profile: int | None, keys: Keys, other_variant: Compiled | None
    ) -> Mapping[str, Milliseconds]:
        """Measure ``compiled``, ``compiled`` with PyTorch in place of every engine, and ``other_variant`` if not None.
        Return the pairs of `Times.engines` under ``keys.engines``, and `Times.whole` under ``keys.program``."""
        other = replace_engines(compiled, dict.fromkeys(keys.engines, TRIAL))
        whole: Mapping[str, SegmentCost] | None = None
        try:
            if other_variant is not None:
                ours, theirs, whole = self.timer((compiled, other, other_variant), profile)
        except Exception as error:
            log.info("a variant of the program does not run: %s", error)
        if whole is None:  # the error is gone, and with it the modules that its traceback held
            torch.cuda.empty_cache()
            ours, theirs = self.timer((compiled, other), profile)
        total = None if whole is None else round(sum(cost.max_time for cost in whole.values()), 4)
        rows = [(name, ours[name].gpu, theirs[name.replace("engine", "torch", 1)].max_time) for name in keys.engines]
        pairs = {name: (round(engine, 4), round(parts, 4)) for name, engine, parts in rows}
        before, after = _sums_of_engines_and_torch(_slower_than_torch(pairs, _minimum_gain(compiled, profile)))
        others = sum(cost.max_time for name, cost in theirs.items() if name in ours)
        mixed = round(_sums_of_engines_and_torch(pairs)[0] - before + after + others, 4)
        log.info("measured: %s ms with PyTorch for slower engines, %s ms for the other variant", mixed, total)
        return {**{keys.engines[name]: pair for name, pair in pairs.items()}, keys.program: (mixed, total)}


def _minimum_gain(compiled: Compiled, profile: int | None) -> float:
    """Return how many milliseconds per call PyTorch must save, compared with engines, to run in their place."""
    return LEAST if compiled.settings.torch_compile is None and profile is None else LEAST_OF_MANY


@frozen
class Times:
    """The measured milliseconds of a program at the sizes of a profile (None: the program has no profiles).

    engines: by engine name, a pair: the time of the engine, and of its operators in PyTorch.
    whole: a pair: the time of the program with PyTorch in place of slower engines; and that of the other variant, or
        None. The other variant runs the whole captured program in PyTorch or, if engines are for one profile each, the
        matmuls by weights and some attention.
    complete: whether all times are known. least: the milliseconds that a variant must save to be chosen.
    """

    profile: int | None
    whole: Milliseconds
    engines: Mapping[str, Milliseconds]
    complete: bool
    least: float

    @classmethod
    def look_up(cls, compiled: Compiled, profile: int | None, keys: Keys, known: Mapping[str, Milliseconds]) -> Times:
        """Return the times of a program in a profile, as far as they are in ``known``, the stored times by key.
        ``keys``: the keys of this program and of its engines."""
        engines = {name: known[key] for name, key in keys.engines.items() if key in known}
        complete = keys.program in known and engines.keys() == keys.engines.keys()
        return cls(profile, known.get(keys.program, (0.0, None)), engines, complete, _minimum_gain(compiled, profile))

    @property
    def other_variant_is_faster(self) -> bool:
        """Return whether the other variant is faster than the program with PyTorch in place of slower engines."""
        ours, theirs = self.whole
        return theirs is not None and _saves_enough(ours, theirs, self.least)

    def why_torch(self, what: str, times: Milliseconds, instead: str = "PyTorch") -> Rejection:
        """Return why PyTorch runs ``what``: ``times`` has the milliseconds of ``what`` and of ``instead``."""
        ours, theirs = times
        where = "" if self.profile is None else f" in profile {self.profile}"
        why = f"PyTorch is faster on this GPU: {what} takes {ours:.3g} ms{where}, and {instead} {theirs:.3g} ms"
        return Rejection(why, "set faster_in_torch=False to keep it in TensorRT")


Rows: TypeAlias = "list[tuple[Times, tuple[float, float]]]"


def _engines_to_replace(compiled: Compiled, times: Sequence[Times], checked: Sequence[Times]) -> Mapping[str, Rows]:
    """Return the engines that PyTorch should replace: those slower than it in a profile of ``checked`` or, if they
    serve all profiles, in all of ``times``. Their rows are (`Times`, both times) of profiles where they are slower."""
    slower = dict[str, Rows]()
    for t in checked:
        for name, pair in _slower_than_torch(t.engines, t.least).items():
            slower.setdefault(name, []).append((t, pair))
    shared = {segment.name for segment in compiled.partitioned.engine_segments if segment.profile is None}
    return {name: rows for name, rows in slower.items() if name not in shared or len(rows) == len(times)}


def _measurement_keys(compiled: Compiled) -> Mapping[int | None, Keys]:
    """Return for each profile (None in a program without profiles) the `Keys` under which measured times are stored."""
    program, parts = compiled.program, _has_engine_per_profile(compiled)
    profiles = range(len(program.profiles)) or (None,)
    forms = {each: kinds_in_words(program, to_try_in_torch(program, each)) if parts else "program" for each in profiles}
    return {profile: Keys.of(compiled, profile, form) for profile, form in forms.items()}


def _has_engine_per_profile(compiled: Compiled) -> bool:
    """Return whether some segment runs in calls of one profile only, as after the stage `engine_per_profile`."""
    return any(segment.profile is not None for segment in compiled.partitioned.segments)


def _slower_than_torch(times: Mapping[str, Milliseconds], minimum_gain: float) -> dict[str, tuple[float, float]]:
    """Return those of ``times`` (by engine name: the engine's time, and its operators' in PyTorch) in which PyTorch is
    faster; none if all of them together would not save ``minimum_gain`` milliseconds."""
    found = {name: (a, b) for name, (a, b) in times.items() if b is not None and b < MARGIN * a}
    return found if _saves_enough(*_sums_of_engines_and_torch(found), minimum_gain) else {}


def _sums_of_engines_and_torch(times: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    """Return the total time of the engines, and of their operators in PyTorch."""
    return sum(a for a, _ in times.values()), sum(b for _, b in times.values())


def _saves_enough(before: float, after: float, minimum_gain: float) -> bool:
    """Return whether the time ``after`` a change is enough shorter than the time ``before`` to justify the change."""
    return after < MARGIN * before and before - after >= minimum_gain


def _totals(times: Iterable[Milliseconds]) -> str:
    """Return the totals of pairs (engine's time, PyTorch's time) for the log: ``1.2 ms instead of 3.4 (…)``."""
    ours, theirs = (sum(column) for column in zip(*times, strict=True))
    return f"{theirs:.3g} ms instead of {ours:.3g} (set faster_in_torch=False to keep them in TensorRT)"


def _should_be_measured(compiled: Compiled) -> bool:
    """Return whether a program should be measured, according to its settings and size."""
    settings = compiled.settings
    asked = settings.faster_in_torch and settings.load_built_engines and not settings.require_full_compilation
    if compiled.program.sharding is not None:  # all ranks have to be there, and it takes memory of each
        asked &= isinstance(settings.measurements, str) and _has_its_gpu(compiled) and runs_without_ranks(compiled)
    layers = (layer for network in compiled.networks for layer in network.layers if layer.kind == "CONVOLUTION")
    least = GROUPED if any(layer.attribute("num_groups") > 1 for layer in layers) else LARGE
    large = settings.torch_compile is not None or tensor_bytes(compiled.program) >= least
    return asked and bool(compiled.engines) and large


def _has_its_gpu(compiled: Compiled) -> bool:
    """Return whether this machine has a GPU that the program is compiled for."""
    return has_gpu() and is_for_this_gpu(compiled.settings.compute_capabilities)


def tensor_bytes(program: Program) -> int:
    """Return the number of bytes of all tensors of a program at the optimal sizes."""
    pairs = ((node.name, value) for node in program.graph.nodes for value in tree_leaves(node.meta.get("val")))
    tensors = (make_port(name, value, program.shapes) for name, value in pairs if isinstance(value, torch.Tensor))
    return sum(tensor.nbytes(lambda sizes: sizes.opt) for tensor in tensors)
