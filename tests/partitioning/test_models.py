"""Real architectures of which engines refuse a tenth of the operators: right, and no engine too small."""

from __future__ import annotations

import pytest

from benchmarks import partitions
from examples.models import Case, small
from pipeline.program import Validated
from pipeline.stages.partition import Partitioner, by_submodule, partition


@pytest.fixture(scope="module", params=["resnet50", "bert"])
def given(request: pytest.FixtureRequest) -> tuple[Case, Validated]:
    case = small(request.param)
    return case, partitions.validated_case(case)


@pytest.mark.parametrize(
    ("seed", "partitioner"),
    [(0, partition), (1, partition), (2, partition), (3, by_submodule(4))],
    ids=["seed 0", "seed 1", "seed 2", "submodules"],
)
def test_models_of_which_engines_refuse_a_tenth(
    given: tuple[Case, Validated], seed: int, partitioner: Partitioner
) -> None:
    row = partitions.refusing(*given, seed, partitioner)
    assert row["relative_error"] < 1e-5, row
    assert row["operators_in_engines"] < row["operators"]
    assert row["smallest_engine"] >= row["min_block_size"] or not row["engines"], row


def test_cutting_is_measured() -> None:
    rows = partitions.cutting((20, 40))
    assert [row["partitioner"] for row in rows] == ["default"] * 2 + ["by_submodule(3)"] * 2
    assert [row["segments"] == 1 for row in rows[::2]] == [True, True]
    assert all(0 < row["seconds"]["40"] < 1 for row in rows)


def test_missed_targets_are_named() -> None:
    good = {"partitioner": "default", "refused": 0.1, "seconds": {"100": 0.1}, "growth": 1.0}
    right = {"model": "bert", "seed": 0, "relative_error": 1e-6, "smallest_engine": 5, "min_block_size": 5}
    assert not list(partitions.missed({"cutting": [good], "refusing": [right]}))
    bad, wrong = {**good, "seconds": {"100": 9.0}, "growth": 3.0}, {**right, "smallest_engine": 1}
    assert len(list(partitions.missed({"cutting": [bad], "refusing": [wrong]}))) == 3
