"""Every architecture of the zoo on a GPU, the module there before it is captured: engines agree with eager.

In every dtype with ``make gpu-test-all``; ``make gpu-test`` has each architecture in one, and the dtypes in turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from benchmarks import zoo, zoo_gpu
from benchmarks.architectures import Architecture

pytestmark = pytest.mark.gpu

ALL = [each for table in zoo.TABLES for each in zoo.architectures(table)]


@pytest.mark.parametrize("dtype", zoo_gpu.FLOOR)
@pytest.mark.parametrize("architecture", ALL, ids=[f"{each.task}-{each.name}".replace(" ", "-") for each in ALL])
def test_agrees_with_eager(
    architecture: Architecture, dtype: str, record_property: Callable[[str, object], None]
) -> None:
    pytest.importorskip(architecture.library)
    row = zoo_gpu.row(architecture, dtype)
    record_property("zoo_gpu", json.dumps(row))
    if "eager" in row:
        pytest.skip(f"eager fails on this GPU: {row['eager']}")
    assert "refused" not in row or (row["task"], row["name"]) not in zoo_gpu.taken_before(), row["refused"]
    if {"failed", "wrong"} & row.keys() and not {"undecided", "healed", "exported"} & row.keys():
        pytest.fail(json.dumps(row, indent=1), pytrace=False)
