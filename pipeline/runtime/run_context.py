"""``Turn``: the arguments of a run that the runners of segments share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from attrs import frozen

from pipeline.frozen import FrozenDict
from pipeline.runtime.call_plan import CallPlan, Runner

NO_MEMORY: Final[Mapping[int, torch.Tensor]] = FrozenDict()


@frozen(eq=False)
class Turn:
    """A run of a program: the arguments that each of its segments gets beside its inputs.

    Attributes:
        stream: the CUDA stream that engines run on; None on the CPU.
        plan: a key for all shapes in the run; None if they do not depend on the inputs' shapes alone.
        captured: whether the run is captured in a CUDA graph.
        into: memory that engines write values to, by slot.
    """

    stream: Any = None
    plan: CallPlan | None = None
    captured: bool = False
    into: Mapping[int, torch.Tensor] = NO_MEMORY


ON_CPU: Final = Turn()
"""A run without a stream."""

Told: TypeAlias = Callable[[list[Any], Turn], Sequence[Any]]
"""Runs a segment, given the `Turn`."""


def untold(runner: Runner) -> Told:
    """Adapt a runner that needs no `Turn`."""
    return lambda inputs, turn: runner(inputs)
