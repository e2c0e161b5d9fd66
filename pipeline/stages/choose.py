"""choose: ``Compiled`` → ``Compiled``. Run the operators of an engine in PyTorch if they are faster there on this GPU.

Before: any compiled program. After: the same; or one in which some engines are segments of PyTorch, with both times in
the reasons of ``coverage.fallback``. Small programs are not measured, and none is without a GPU.
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
from pipeline.program import Program, port
from pipeline.runtime.engine_load import is_for_this_gpu
from pipeline.stages.verify import STAGES
from pipeline.trt import has_gpu
from pipeline.verification.engines_in_torch import in_torch
from pipeline.verification.samples import sample, sizes_to_try

log = logging.getLogger(__name__)

LARGE: Final = 256 << 20
"""The bytes of a program's tensors from which it is measured: reading them takes a GPU 60 µs."""
MARGIN: Final = 0.97
"""An engine is replaced if PyTorch takes less than this part of its time."""
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
        """Return the program in which each engine that is slower than PyTorch is a segment of PyTorch."""
        if not _is_measured(compiled):
            return compiled
        engines, stages = [segment.name for segment in compiled.partitioned.engine_segments], self.before or STAGES
        try:
            other = in_torch(compiled, dict.fromkeys(engines, Rejection("it is measured in PyTorch")), stages)
            ours, theirs = self.timer((compiled, other))
            times = {name: (ours[name].gpu, theirs[name.replace("engine", "torch", 1)].most) for name in engines}
        except Exception as error:  # no memory for both, or no inputs that it takes: the program is right as it is
            log.info("the program was not compared with PyTorch: %s", error)
            return compiled
        faster = {name: pair for name, pair in times.items() if pair[1] < MARGIN * pair[0]}
        before, after = map(sum, zip((0.0, 0.0), *faster.values(), strict=True))
        if before - after < LEAST:
            return compiled
        log.warning(
            "PyTorch is faster than %d of %d engines on this GPU, and runs them: %.3g ms instead of %.3g "
            "(faster_in_torch=False keeps them in TensorRT)",
            *(len(faster), len(engines), after, before),
        )
        return in_torch(compiled, {name: _reason(*pair) for name, pair in faster.items()}, stages)


def _reason(ours: float, theirs: float) -> Rejection:
    why = f"PyTorch is faster on this GPU: its engine takes {ours:.3g} ms, and PyTorch {theirs:.3g} ms"
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
