"""Calls that are measured in turns, and what is told of the host meanwhile."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import torch

from benchmarks import environment, gpu_tables, turns

ROW = {"model": "vit", "dtype": "float16", "batch": 1, "gpu_ms": 2.0}


class FakeEvent:
    """A GPU's clock, which goes on by 2 ms a look."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        FakeEvent.now += 2
        self.at = FakeEvent.now

    def elapsed_time(self, end: Any) -> float:
        return float(end.at - self.at)


def test_calls_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    order: list[str] = []

    def call(name: str) -> None:
        order.append(name)
        sum(range(99))  # a microsecond: times have one digit behind the point

    found = turns.in_turns({name: partial(call, name) for name in "ab"}, rest=0)
    assert [name for name, _ in itertools.groupby(order)] == ["a", "b"] * (turns.ROUNDS + 1)
    assert order.count("a") == (turns.ROUNDS + 1) * turns.WARM_UP + turns.ROUNDS * 2 * turns.CALLS
    for times in found.values():
        assert times["gpu_ms"] == times["gpu_ms_quiet"] == 2
        assert times["loop_us"] > times["host_us"] >= times["host_us_quiet"] > 0
        assert times["calls_per_second_quiet"] >= times["calls_per_second"] > 0


def test_a_page_tells_how_fast_the_host_was() -> None:
    rows = [
        {**ROW, "method": method, "loop_us": us}
        for method, us in zip(("eager", "raw engine", "pipeline"), (300.4, 500.0, 410.0), strict=True)
    ]
    text = gpu_tables.gpu({"name": "gpu", **environment.environment(), "rows": rows})
    told = f"The host took 410 µs (300 to 500) for a loop of {turns.LOOP} squares in Python, before each turn.\n\n"
    assert f"### vit, float16, batch 1\n\n{told}| method |" in text
