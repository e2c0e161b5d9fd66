"""choose: ``Compiled`` → ``Compiled``. Run operators in PyTorch if they are faster there on this GPU.

Before: any compiled program. After: the fastest of the same; one in which some engines are segments of PyTorch; and the
program before `decompose` as one segment of PyTorch, whose operators may be fewer and larger. The reasons of
``coverage.fallback`` have both times. Small programs are not measured, and none is without a GPU.
"""

from __future__ import annotations

import logging
import math
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
from pipeline.program import Program, port
from pipeline.runtime.engine_load import is_for_this_gpu
from pipeline.stages.verify import STAGES
from pipeline.trt import has_gpu
from pipeline.verification.engines_in_torch import captured_in_torch, in_torch
from pipeline.verification.samples import sample, sizes_to_try

log = logging.getLogger(__name__)

LARGE: Final = 256 << 20
"""The bytes of a program's tensors from which it is measured: reading them takes a GPU 60 µs."""
MARGIN: Final = 0.97
"""Engines are replaced if PyTorch takes less than this part of their time."""
LEAST: Final = 0.1
"""The milliseconds that a program has to gain."""


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
    ``require_full_compilation``. Two compilations may differ where an engine and PyTorch take about as long.

    timer: measures a program's segments.
    before: the stages before it in its pipeline.
    """

    timer: Timer = field(default=measured, repr=False)
    before: tuple[AnyStage, ...] = field(default=(), eq=False, repr=False, kw_only=True)
    name: str = field(default="choose", kw_only=True)

    def following(self, before: tuple[AnyStage, ...]) -> Choose:
        """Return this stage with those before it, with which it compiles again."""
        return evolve(self, before=before)

    def __call__(self, compiled: Compiled) -> Compiled:
        """Return the fastest form of a program."""
        if not _is_measured(compiled):
            return compiled
        stages = self.before or STAGES
        try:
            times = self._times(compiled, stages)
        except Exception as error:  # no memory for all, or no inputs that it takes: the program is right as it is
            log.info("the program was not compared with PyTorch: %s", error)
            return compiled
        slower = times.slower
        before, after = map(sum, zip((0.0, 0.0), *slower.values(), strict=True))
        slower = slower if _gains(before, after) else {}
        mixed = times.others + sum(pair[name in slower] for name, pair in times.engines.items())
        if _gains(mixed, times.captured):
            log.warning("PyTorch runs the whole program, as captured, on this GPU: %s", _said(mixed, times.captured))
            return captured_in_torch(compiled, _reason("the program", mixed, times.captured))
        if slower:
            which = f"{len(slower)} of {len(times.engines)} engines"
            log.warning("PyTorch runs the operators of %s on this GPU: %s", which, _said(before, after))
        reasons = {name: _reason("its engine", *pair) for name, pair in slower.items()}
        return in_torch(compiled, reasons, stages) if slower else compiled

    def _times(self, compiled: Compiled, stages: Sequence[AnyStage]) -> Times:
        """Measure a program, its operators in PyTorch, and what was captured in PyTorch."""
        trial = Rejection("it is measured in PyTorch")
        other = in_torch(compiled, {s.name: trial for s in compiled.partitioned.engine_segments}, stages)
        try:
            ours, theirs, whole = self.timer((compiled, other, captured_in_torch(compiled, trial)))
            captured = sum(cost.most for cost in whole.values())
        except Exception as error:
            log.info("the captured program does not run in PyTorch: %s", error)
            (ours, theirs), captured = self.timer((compiled, other)), math.inf
        places = zip(compiled.partitioned.segments, other.partitioned.segments, strict=True)
        pairs = [(engine, ours[engine.name].gpu, theirs[torch.name].most) for engine, torch in places]
        engines = {s.name: (ours, theirs) for s, ours, theirs in pairs if s.kind == "engine"}
        return Times(engines, sum(theirs for s, _, theirs in pairs if s.kind == "torch"), captured)


@frozen
class Times:
    """Milliseconds of a call: of each engine and of its operators in PyTorch, by name; of the other segments together;
    and of the program before `decompose` in PyTorch."""

    engines: Mapping[str, tuple[float, float]]
    others: float
    captured: float

    @property
    def slower(self) -> Mapping[str, tuple[float, float]]:
        """Return the engines whose operators are faster in PyTorch."""
        return {name: pair for name, pair in self.engines.items() if pair[1] < MARGIN * pair[0]}


def _gains(before: float, after: float) -> bool:
    """Return whether PyTorch takes so much less time that it is worth a change."""
    return after < MARGIN * before and before - after >= LEAST


def _said(ours: float, theirs: float) -> str:
    return f"{theirs:.3g} ms instead of {ours:.3g} (faster_in_torch=False keeps them in TensorRT)"


def _reason(what: str, ours: float, theirs: float) -> Rejection:
    why = f"PyTorch is faster on this GPU: {what} takes {ours:.3g} ms, and PyTorch {theirs:.3g} ms"
    return Rejection(why, "faster_in_torch=False keeps it in TensorRT")


def _is_measured(compiled: Compiled) -> bool:
    """Return whether the settings and the size of a program ask for measurements."""
    settings, segments = compiled.settings, compiled.partitioned.segments
    asked = settings.faster_in_torch and settings.load_built_engines and not settings.require_full_compilation
    plain = bool(compiled.engines) and all(segment.profile is None for segment in segments)
    here = has_gpu() and is_for_this_gpu(settings.compute_capabilities)
    return asked and plain and here and tensor_bytes(compiled.program) >= LARGE


def tensor_bytes(program: Program) -> int:
    """Return the bytes of all tensors of a program at the optimal sizes."""
    pairs = ((node.name, value) for node in program.graph.nodes for value in tree_leaves(node.meta.get("val")))
    tensors = (port(name, value, program.shapes) for name, value in pairs if isinstance(value, torch.Tensor))
    return sum(tensor.nbytes(lambda sizes: sizes.opt) for tensor in tensors)
