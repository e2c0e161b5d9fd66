"""Random programs of what TensorRT fuses, on a GPU: as exact as eager."""

from __future__ import annotations

import pytest
import torch

from benchmarks.emulated import FLOORS, excess_on_gpu
from benchmarks.emulator.programs import program

pytestmark = pytest.mark.gpu
CHUNK = 15


@pytest.mark.parametrize("dtype", FLOORS, ids=str)
@pytest.mark.parametrize("first", range(0, 90, CHUNK))
def test_random_programs_are_right(first: int, dtype: torch.dtype) -> None:
    wrong = [(seed, error) for seed in range(first, first + CHUNK) if (error := excess_on_gpu(program(seed), dtype))]
    assert not wrong
