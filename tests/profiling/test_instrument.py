"""A module whose segments are measured: each is seen with its name, in order, and gives what it gave."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from pipeline.profiling import measure, segment_costs
from tests.viewing.models import fallbacks


def test_every_segment_is_seen_in_order() -> None:
    module, seen = fallbacks().module("reference"), list[str]()

    def named(name: str, run: Any, inputs: list[Any], turn: Any) -> Any:
        seen.append(name)
        return run(inputs, turn)

    x = torch.randn(4, 8)
    before = module(x)
    module.instrument(lambda segment, run: partial(named, segment.name, run))
    assert torch.equal(module(x), before)
    assert seen == [segment.name for segment in fallbacks().partitioned.segments]
    assert module.refused_graphs == ()


class Moment:
    """A CUDA event on a clock of its own."""

    now = 0.0

    def __init__(self) -> None:
        Moment.now += 1.5
        self.at = Moment.now

    def elapsed_time(self, end: Moment) -> float:
        return end.at - self.at


def test_segments_are_timed(monkeypatch: Any) -> None:
    """In each run but the first, behind what keeps the GPU busy while the host launches the segment."""
    kept_busy = list[int]()
    monkeypatch.setattr(measure, "keep_busy", kept_busy.append)
    monkeypatch.setattr(measure, "record_event", Moment)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(measure, "_copy_to_gpu", lambda value: value)
    call = measure.Call((torch.randn(4, 8),), {})
    times = measure.segment_times(fallbacks().module("reference"), call, 3)
    assert set(times) == {segment.name for segment in fallbacks().partitioned.segments}
    assert all(found == [1.5] * 3 for found in times.values())
    assert call.input_texts == ("float32[4, 8]",)
    assert len(kept_busy) == 3 * len(times)
    assert all(cycles > 0 for cycles in kept_busy)


def test_the_gpu_is_busy_for_as_long_as_the_host_took(monkeypatch: Any) -> None:
    clock, kept_busy = iter([0.0, 0.5, 1.0, 1.75, 2.0, 2.25, 3.0, 4.0]), list[int]()
    monkeypatch.setattr(measure, "keep_busy", kept_busy.append)
    monkeypatch.setattr(measure, "record_event", Moment)
    monkeypatch.setattr(measure, "perf_counter", lambda: next(clock))
    ahead = measure.SegmentTimer()
    assert [ahead(lambda inputs, turn: inputs, [i], None) for i in range(4)] == [[0], [1], [2], [3]]  # type: ignore[arg-type]
    assert len(ahead.marks) == 3
    assert kept_busy == [round(1.5 * took * measure.CYCLES) for took in (0.5, 0.5, 0.25)], "a wait for the GPU counts"


def test_segments_share_the_time_of_a_graph() -> None:
    costs = {"engine_0": segment_costs.SegmentCost(1.0, 0.2), "torch_1": segment_costs.SegmentCost(3.0, 9.0)}
    found = {"engine_0": segment_costs.SegmentCost(0.5, 0.0), "torch_1": segment_costs.SegmentCost(1.5, 0.0)}
    assert segment_costs._divide_graph_time(costs, [2.0, 2.0, 8.0]) == found
    assert segment_costs._divide_graph_time(costs, []) is costs


class Context:
    """An execution context that reports when it is asked to."""

    def __init__(self, recorder: measure.LayerRecorder) -> None:
        self.recorder = recorder

    def report_to_profiler(self) -> None:
        self.recorder.report_layer_time("conv", 0.25)


def test_layers_are_recorded_run_by_run(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    recorder = measure.LayerRecorder()

    def run(inputs: list[Any], turn: Any) -> list[Any]:
        recorder.report_layer_time("relu", 0.5)
        return inputs

    assert measure.record_run(run, Context(recorder), recorder, [3], None) == [3]  # type: ignore[arg-type]
    measure.record_run(lambda inputs, turn: inputs, Context(recorder), recorder, [], None)  # type: ignore[arg-type]
    assert recorder.runs == [[("relu", 0.5)], [("conv", 0.25)]]


class Replayed:
    """A graph that takes so many milliseconds in each replay, on the fixture's clock."""

    def __init__(self, name: str, times: list[float], log: list[str], clock: list[float]) -> None:
        self.name, self.times, self.log, self.clock = name, times, log, clock

    def replay(self) -> None:
        self.log.append(self.name)
        self.clock[0] += self.times[self.log.count(self.name) - 1]


def test_forms_are_replayed_in_turns_and_their_least_times_count(monkeypatch: pytest.MonkeyPatch) -> None:
    order, clock = list[str](), [0.0]
    monkeypatch.setattr(segment_costs, "record_event", lambda: clock[0])
    monkeypatch.setattr(segment_costs, "elapsed_milliseconds", lambda marks: [end - start for start, end in marks])
    graphs: Any = [Replayed("a", [9, 9, 7, 2, 5], order, clock), None, Replayed("b", [1, 1, 8, 8, 3], order, clock)]
    times = segment_costs._replay_times(graphs, 2)
    assert order == ["a", "b"] * 4 and times == [[7, 2], [], [8, 8]]
    costs = {"engine_0": segment_costs.SegmentCost(3.0, 1.0), "torch_1": segment_costs.SegmentCost(1.0, 1.0)}
    assert {name: cost.max_time for name, cost in segment_costs._divide_graph_time(costs, times[0]).items()} == {
        "engine_0": 1.5,
        "torch_1": 0.5,
    }
    assert segment_costs._divide_graph_time(costs, times[1]) == costs
