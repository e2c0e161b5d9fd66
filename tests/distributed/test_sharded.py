"""Sharded models, compiled and run by several processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed import cases
from tests.distributed.ranks import run_in_ranks


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What failed with two ranks, by case."""
    return run_in_ranks(cases.CASES, 2, tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("case", [case.__name__ for case in cases.CASES])
def test_two_ranks(two: dict[str, str], case: str) -> None:
    assert not two[case]
