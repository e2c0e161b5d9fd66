"""choose: ``Compiled`` → ``Compiled``. Run operators in PyTorch if they are faster there on this GPU.

Before: any compiled program. After: the fastest of the same; one in which some engines are segments of PyTorch; and the
program before `decompose` as one segment of PyTorch, whose operators may be fewer and larger. The reasons of
``coverage.fallback`` have both times. Small programs are not measured, and none is without a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

import torch
from attrs import evolve, field, frozen
from torch.utils._pytree import tree_leaves

from pipeline.compiled import Compiled
from pipeline.compose.stage_signature import AnyStage
from pipeline.converters.declare import Rejection
from pipeline.profiling.measure import SegmentCost, segment_costs
from pipeline.profiling.measurements import Forgotten, Keys, Measurements, Pair
from pipeline.program import Program, port
from pipeline.runtime.engine_load import is_for_this_gpu
from pipeline.runtime.program_engines import share_kernels
from pipeline.stages.verify import STAGES
from pipeline.trt import has_gpu
from pipeline.verification.engines_in_torch import captured_in_torch, in_torch
from pipeline.verification.samples import sample, sizes_to_try

log = logging.getLogger(__name__)

LARGE: Final = 256 << 20
"""The bytes of a program's tensors from which it is measured: reading them takes a GPU 60 µs. With ``torch_compile``
smaller ones are measured, too."""
MARGIN: Final = 0.97
"""Engines are replaced if PyTorch takes less than this part of their time."""
LEAST: Final = 0.1
LEAST_COMPILED: Final = 0.01
"""The milliseconds that a program has to gain; and with ``torch_compile``, for which the user pays in seconds."""


class Timer(Protocol):
    """A function that measures the segments of programs in calls with the same inputs on this GPU, by name."""

    def __call__(self, programs: Sequence[Compiled]) -> Sequence[Mapping[str, SegmentCost]]: ...


def measured(
    programs: Sequence[Compiled], turn: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Sequence[Mapping[str, SegmentCost]]:
    """Measure segments in calls at the optimal sizes; ``turn`` as for `segment_costs`."""
    program = programs[0].program
    args, kwargs = sample(program, dict(sizes_to_try(program))["optimal"]).arguments(program, torch.device("cuda"))
    with torch.random.fork_rng(devices=[torch.cuda.current_device()]):  # operators may draw random numbers
        return segment_costs(programs, args, kwargs, turn)


@frozen
class Choose:
    """The stage. It is skipped with ``faster_in_torch=False``, ``load_built_engines=False`` or
    ``require_full_compilation``. Where an engine and PyTorch take about as long, two compilations may differ, unless
    the second finds the measurements of the first.

    timer: measures the segments of programs.
    kept: stores measurements for later compilations, and for those without a GPU.
    before: the stages before it in its pipeline.
    """

    timer: Timer = field(default=measured, repr=False)
    kept: Measurements = field(default=Forgotten(), repr=False)
    before: tuple[AnyStage, ...] = field(default=(), eq=False, repr=False, kw_only=True)
    name: str = field(default="choose", kw_only=True)

    def following(self, before: tuple[AnyStage, ...]) -> Choose:
        """Return this stage with those before it, with which it compiles again."""
        return evolve(self, before=before)

    def __call__(self, compiled: Compiled) -> Compiled:
        """Return the fastest form of a program."""
        if not _is_asked(compiled):
            return compiled
        fastest = compiled
        try:
            fastest = self._fastest(compiled, self.before or STAGES)
        except Exception as error:  # no memory for all, or no inputs that it takes: the program is right as it is
            log.info("the program was not compared with PyTorch: %s", error)
        _free_memory()
        return fastest

    def _fastest(self, compiled: Compiled, stages: Sequence[AnyStage]) -> Compiled:
        keys, least = Keys.of(compiled), _least(compiled)
        times = self.kept.load(compiled.settings.compute_capabilities)
        if _is_here(compiled) and not _suffices(times, keys, least):
            found = self._measured(compiled, keys, stages)
            self.kept.save(found)
            times = {**found, **times}
        ours, theirs = times.get(keys.program, (0.0, None))
        if theirs is not None and _gains(ours, theirs, least):
            log.warning("PyTorch runs the whole program, as captured, on this GPU: %s", _said(ours, theirs))
            return captured_in_torch(compiled, _reason("the program", ours, theirs))
        slower = _slower({name: times[key] for name, key in keys.engines.items() if key in times}, least)
        if not slower:
            return compiled
        which = f"{len(slower)} of {len(keys.engines)} engines"
        log.warning("PyTorch runs the operators of %s on this GPU: %s", which, _said(*_sums(slower)))
        mixed = in_torch(compiled, {name: _reason("its engine", *pair) for name, pair in slower.items()}, stages)
        if _is_here(compiled):
            share_kernels(compiled, mixed)
        return mixed

    def _measured(self, compiled: Compiled, keys: Keys, stages: Sequence[AnyStage]) -> Mapping[str, Pair]:
        """Measure a program, its operators in PyTorch, and what was captured in PyTorch."""
        trial = Rejection("it is measured in PyTorch")
        other = in_torch(compiled, dict.fromkeys(keys.engines, trial), stages)
        whole: Mapping[str, SegmentCost] | None = None
        try:
            ours, theirs, whole = self.timer((compiled, other, captured_in_torch(compiled, trial)))
        except Exception as error:
            log.info("the captured program does not run in PyTorch: %s", error)
        if whole is None:  # the error is gone, and with it the modules that its traceback held
            _free_memory()
            ours, theirs = self.timer((compiled, other))
        captured = None if whole is None else round(sum(cost.most for cost in whole.values()), 4)
        rows = [(s, theirs[s.name.replace("engine", "torch", 1)].most) for s in compiled.partitioned.segments]
        pairs = {s.name: (round(ours[s.name].gpu, 4), round(b, 4)) for s, b in rows if s.kind == "engine"}
        before, after = _sums(_slower(pairs, _least(compiled)))
        others = sum(b for s, b in rows if s.kind == "torch")
        mixed = round(_sums(pairs)[0] - before + after + others, 4)
        return {**{keys.engines[name]: pair for name, pair in pairs.items()}, keys.program: (mixed, captured)}


def _least(compiled: Compiled) -> float:
    return LEAST if compiled.settings.torch_compile is None else LEAST_COMPILED


def _free_memory() -> None:
    """Return the memory of measured modules to the GPU: TensorRT does not take it from PyTorch's allocator."""
    torch.cuda.empty_cache()


def _suffices(times: Mapping[str, Pair], keys: Keys, least: float) -> bool:
    """Return whether these measurements decide everything."""
    ours, theirs = times.get(keys.program, (0.0, None))
    whole = theirs is not None and _gains(ours, theirs, least)
    return keys.program in times and (whole or times.keys() >= {*keys.engines.values()})


def _slower(times: Mapping[str, Pair], least: float) -> dict[str, tuple[float, float]]:
    """Return the engines whose operators are faster in PyTorch; none if all of them together gain little."""
    found = {name: (a, b) for name, (a, b) in times.items() if b is not None and b < MARGIN * a}
    return found if _gains(*_sums(found), least) else {}


def _sums(times: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    return sum(a for a, _ in times.values()), sum(b for _, b in times.values())


def _gains(before: float, after: float, least: float) -> bool:
    """Return whether PyTorch takes so much less time that it is worth a change."""
    return after < MARGIN * before and before - after >= least


def _said(ours: float, theirs: float) -> str:
    return f"{theirs:.3g} ms instead of {ours:.3g} (faster_in_torch=False keeps them in TensorRT)"


def _reason(what: str, ours: float, theirs: float) -> Rejection:
    why = f"PyTorch is faster on this GPU: {what} takes {ours:.3g} ms, and PyTorch {theirs:.3g} ms"
    return Rejection(why, "faster_in_torch=False keeps it in TensorRT")


def _is_asked(compiled: Compiled) -> bool:
    """Return whether the settings and the size of a program ask for measurements."""
    settings, segments = compiled.settings, compiled.partitioned.segments
    asked = settings.faster_in_torch and settings.load_built_engines and not settings.require_full_compilation
    asked = asked and compiled.program.sharding is None  # ranks that measure make other calls than those that do not
    plain = bool(compiled.engines) and all(segment.profile is None for segment in segments)
    large = settings.torch_compile is not None or tensor_bytes(compiled.program) >= LARGE
    return asked and plain and large


def _is_here(compiled: Compiled) -> bool:
    """Return whether the program's GPU is at hand."""
    return has_gpu() and is_for_this_gpu(compiled.settings.compute_capabilities)


def tensor_bytes(program: Program) -> int:
    """Return the bytes of all tensors of a program at the optimal sizes."""
    pairs = ((node.name, value) for node in program.graph.nodes for value in tree_leaves(node.meta.get("val")))
    tensors = (port(name, value, program.shapes) for name, value in pairs if isinstance(value, torch.Tensor))
    return sum(tensor.nbytes(lambda sizes: sizes.opt) for tensor in tensors)
