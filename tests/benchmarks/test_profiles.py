"""The benchmark of profiles: programs for one shape, a range or several profiles, and the table of their times."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

from benchmarks import environment, gpu_profiles, gpu_tables
from examples.models import small

SHAPES = gpu_profiles.MODELS["vit"]


@pytest.mark.parametrize("way", gpu_profiles.WAYS)
def test_ways_have_their_profiles(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = gpu_profiles.engines(small("vit"), SHAPES, way)
    ranges = [[p.ranges for network in program.networks for p in network.profiles] for program in programs]
    batches = [[(low[0], high[0]) for [(_, low, _, high)] in each] for each in ranges]
    expected: dict[str, Any] = {
        "an engine each": [[], [], []],
        "one range": [[(1, 8)]],
        "three shapes": [[(1, 1), (4, 4), (8, 8)]],
        "three ranges, an engine for each": [[(2, 4), (5, 8)]],
        "three shapes, an engine for each": [[]],
    }
    assert batches == expected.get(way, [[(1, 1), (2, 4), (5, 8)]])
    assert {len(program.networks) for program in programs} == {3 if "for each" in way else 1}
    assert {program.settings.kernel_specialization for program in programs} == {"lazy" if "lazy" in way else "none"}


def test_all_shapes_are_run_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    def in_turns(calls: dict[str, Any]) -> dict[str, Any]:
        ran.extend(call().logits.shape[0] for call in calls.values())
        return {name: {"gpu_ms": 1.0} for name in calls}

    monkeypatch.setattr(gpu_profiles, "in_turns", in_turns)
    [row] = gpu_profiles.measuring(small("vit"), small("vit"), SHAPES, "three shapes", {"model": "vit"}, "cpu")()
    assert ran == [1, 4, 8] and list(row["times"]) == ["1", "4", "8"]
    assert max(row["relative_error"].values()) < 1e-5 and row["plan_mb"] > 0


def test_times_become_a_table() -> None:
    rows = [
        {
            "model": "vit",
            "way": "an engine each",
            "times": {"1": {"gpu_ms": 0.5}, "8": {"gpu_ms": 2.0}},
            "plan_mb": 9.6,
        },
        {"model": "vit", "way": "three shapes", "times": {"1": {"gpu_ms": 0.6}, "8": {"gpu_ms": 2.0}}, "plan_mb": 3.0},
        {"model": "vit", "way": "one range", "failed": "a | b"},
    ]
    page = gpu_tables.profiles({**environment.environment(), "profiles": rows})
    assert "| an engine each | 0.500 (1.00) | 2.000 (1.00) | 10 |" in page
    assert "| three shapes | 0.600 (1.20) | 2.000 (1.00) | 3 |" in page and "| one range | failed: a / b |" in page
