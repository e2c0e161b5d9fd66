"""`choose` leaves no memory behind, also where its measurements fail."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from pipeline.compiled import Compiled, CompiledModule
from pipeline.profiling.segment_costs import SegmentCost
from pipeline.program import Segment
from pipeline.runtime.run_context import SegmentRunner, Turn
from tests.stages.test_choose import compiled, gpu

__all__ = ["gpu"]  # a fixture of all tests


def test_forms_that_cannot_be_measured_leave_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    modules, alive = list[weakref.ref[CompiledModule]](), list[int]()

    def failing(segment: Segment, run: SegmentRunner) -> SegmentRunner:
        def call(inputs: list[Any], turn: Turn) -> Sequence[Any]:
            raise torch.OutOfMemoryError("no memory")

        return call

    def timer(programs: Sequence[Compiled], profile: int | None) -> Sequence[Mapping[str, SegmentCost]]:
        made = [program.module("reference") for program in programs]
        modules.extend(map(weakref.ref, made))
        made[-1].instrument(failing)
        return [{} for module in made if module(torch.rand(2, 8)) is None]

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: alive.append(sum(each() is not None for each in modules)))
    gc.disable()
    try:
        assert len(compiled(timer, monkeypatch).engines) == 3 and len(modules) == 5
        assert alive == [0, 0], "as many as its frames would hold"
    finally:
        gc.enable()
