"""choose: ``Compiled`` → ``Compiled``. Run the operators of an engine in PyTorch if they are faster there on this GPU.

Before: any compiled program. After: the same; or one in which some engines are segments of PyTorch, with both times in
the reasons of ``coverage.fallback``. Small programs are not measured, and none is without a GPU.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Final, Protocol

import torch
from attrs import evolve, field, frozen
from torch.utils._pytree import tree_iter

from pipeline.compiled import Compiled
from pipeline.compose.stage_signature import AnyStage
from pipeline.converters.declare import Rejection
from pipeline.errors import PipelineError
from pipeline.profiling.measure import SegmentCost, segment_costs
from pipeline.program import Program
from pipeline.shapes.environment import bounds, shape_of
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
    """A function that measures the segments of a program on this GPU, by name; None if it cannot."""

    def __call__(self, compiled: Compiled) -> Mapping[str, SegmentCost] | None: ...


def measured(compiled: Compiled) -> Mapping[str, SegmentCost] | None:
    """Measure each segment in a call at the optimal sizes; None without a GPU, or if the program does not run there."""
    program = compiled.program
    if not has_gpu():
        return None
    try:
        args, kwargs = sample(program, dict(sizes_to_try(program))["optimal"]).arguments(program, torch.device("cuda"))
        return segment_costs(compiled, args, kwargs)
    except (PipelineError, RuntimeError) as error:
        log.info("the program was not compared with PyTorch: %s", error)
        return None


@frozen
class Choose:
    """The stage. It is skipped with ``faster_in_torch=False``, ``load_built_engines=False`` or
    ``require_full_compilation``.

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
        names = [segment.name for segment in compiled.partitioned.engine_segments]
        stages = self.before or STAGES
        ours = self.timer(compiled)
        theirs = self.timer(in_torch(compiled, dict.fromkeys(names, Rejection("measured")), stages)) if ours else None
        if not ours or not theirs:
            return compiled
        faster = {
            name: Rejection(
                f"PyTorch is faster on this GPU: its engine takes {ours[name].gpu:.3g} ms, and PyTorch {best:.3g} ms",
                "faster_in_torch=False keeps it in TensorRT",
            )
            for name in names
            if (best := theirs[name.replace("engine", "torch", 1)].most) < MARGIN * ours[name].gpu
        }
        gain = sum(ours[name].gpu - theirs[name.replace("engine", "torch", 1)].most for name in faster)
        return in_torch(compiled, faster, stages) if gain >= LEAST else compiled


def _is_measured(compiled: Compiled) -> bool:
    """Return whether the settings and the size of a program ask for measurements."""
    settings, segments = compiled.settings, compiled.partitioned.segments
    asked = settings.faster_in_torch and settings.load_built_engines and not settings.require_full_compilation
    plain = bool(compiled.engines) and all(segment.profile is None for segment in segments)
    return asked and plain and tensor_bytes(compiled.program) >= LARGE


def tensor_bytes(program: Program) -> int:
    """Return the bytes of all tensors of a program at the optimal sizes."""
    values = (value for node in program.graph.nodes for value in tree_iter(node.meta.get("val")))
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return sum(
        value.dtype.itemsize * math.prod(bounds(size, program.shapes).opt for size in shape_of(value))
        for value in tensors
    )
