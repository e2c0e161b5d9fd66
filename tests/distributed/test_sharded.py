"""Sharded models, compiled and run by several processes."""

from __future__ import annotations

import pytest

from tests.distributed.cases import CASES
from tests.distributed.choosing import CHOOSING
from tests.distributed.models import MODELS
from tests.distributed.more import MORE
from tests.distributed.ranks import run_in_ranks

TWO = (*MODELS, *CHOOSING, *CASES)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What failed with two ranks, by case."""
    return run_in_ranks(TWO, 2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What failed with four ranks, by case."""
    return run_in_ranks(MORE, 4, tmp_path_factory.mktemp("four"))


@pytest.mark.parametrize("case", [case.__name__ for case in TWO])
def test_two_ranks(two: dict[str, str], case: str) -> None:
    assert not two[case]


@pytest.mark.parametrize("case", [case.__name__ for case in MORE])
def test_four_ranks(four: dict[str, str], case: str) -> None:
    assert not four[case]
