"""Sharded models on GPUs: two ranks with gloo on one, and with NCCL on two, whose collectives engines may have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.distributed.ranks import Case, run_in_ranks
from tests.gpu.sharded_cases import ON_ONE_GPU, ON_TWO_GPUS

pytestmark = pytest.mark.gpu


def passes(cases: Sequence[Case], folder: Path, backend: str, gpus: Sequence[int]) -> None:
    """Fail with what failed, by case."""
    found = run_in_ranks(cases, 2, folder, backend, gpus, longest=120)
    if any(found.values()):
        pytest.fail("\n".join(f"{name}: {why}" for name, why in found.items() if why), pytrace=False)


def test_two_ranks_on_one_gpu(tmp_path: Path) -> None:
    passes(ON_ONE_GPU, tmp_path, "gloo", (0, 0))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL takes a GPU for each of two ranks")
def test_two_ranks_on_two_gpus(tmp_path: Path) -> None:
    passes(ON_TWO_GPUS, tmp_path, "nccl", (0, 1))
