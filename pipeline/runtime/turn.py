"""A run of a program on a GPU, as the parts of a worker see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from pipeline.runtime.engine_stream import Lane
from pipeline.runtime.plan import CallPlan
from pipeline.runtime.worker import SegmentExecutor


class Turn:
    """What the run under way is told: its stream, the plan that stands for all shapes in it (None where more than the
    inputs' shapes decides on them), whether it is captured in a CUDA graph, and which memory it is given for values
    that engines make, by slot."""

    def __init__(self) -> None:
        self.stream: Any = None
        self.plan: CallPlan | None = None
        self.captured = False
        self.into: Mapping[int, torch.Tensor] = {}


class OnGpu(Protocol):
    """What of a worker is captured in a CUDA graph: who runs the segments, on which stream, and what they are told."""

    executor: SegmentExecutor
    turn: Turn
    lane: Lane
