"""`choose` loads no more than it measures, and leaves no memory behind, also where its measurements fail."""

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
from pipeline.runtime.call_plan import RunOptions, SegmentRunner
from pipeline.stages import choose
from pipeline.stages.choose import Choose
from pipeline.verification.samples import create_sample, tuned_sizes
from tests.stages.test_choose import by_profile, compiled, gpu

__all__ = ["by_profile", "gpu"]  # fixtures


def test_forms_that_cannot_be_measured_leave_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    modules, alive = list[weakref.ref[CompiledModule]](), list[int]()

    def failing(segment: Segment, run: SegmentRunner) -> SegmentRunner:
        def call(inputs: list[Any], turn: RunOptions) -> Sequence[Any]:
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


@pytest.mark.parametrize(("profile", "rows"), [(0, 1), (1, 2), (1, 8)])
def test_the_engines_of_a_profile_are_loaded(profile: int, rows: int, by_profile: tuple[Compiled, Choose]) -> None:
    program = by_profile[0]
    found = choose._with_engines_of_profile(program, profile)
    assert 0 < len(found.engines) < len(program.engines) and choose._with_engines_of_profile(program, None) is program
    assert [s.name for s in found.partitioned.segments] == [
        s.name for s in program.partitioned.segments if s.runs_in(profile)
    ]
    assert [n.name for n in found.networks] == [s.name for s in found.partitioned.engine_segments]
    size = dict.fromkeys(tuned_sizes(program.program, profile)[0], rows)
    args, kwargs = create_sample(program.program, size).arguments(program.program, torch.device("cpu"))
    torch.testing.assert_close(found.module("reference")(*args, **kwargs), program.module("reference")(*args, **kwargs))
