"""``Turn``: the arguments that all segments of a run share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from attrs import frozen

from pipeline.frozen import FrozenDict
from pipeline.runtime.call_plan import CallPlan, Runner


@frozen(eq=False)
class Turn:
    """The arguments of a run that each segment gets beside its inputs.

    Attributes:
        stream: the CUDA stream that engines run on; None on the CPU.
        plan: a key for all shapes in the run; None if they do not depend on the inputs' shapes alone.
        captured: whether the run is captured in a CUDA graph.
        into: memory that engines write outputs to, by slot.
    """

    stream: Any = None
    plan: CallPlan | None = None
    captured: bool = False
    into: Mapping[int, torch.Tensor] = FrozenDict()


ON_CPU: Final = Turn()
"""The arguments of a run on the CPU."""

SegmentRunner: TypeAlias = Callable[[list[Any], Turn], Sequence[Any]]
"""Runs a segment on its inputs."""


def ignoring_turn(runner: Runner) -> SegmentRunner:
    """Convert a runner that takes inputs only to a `SegmentRunner`, which also gets the arguments of the run."""
    return lambda inputs, turn: runner(inputs)
