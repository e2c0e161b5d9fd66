"""Loops written out, with values computed apart: engines agree with eager in float64, and load in seconds."""

from __future__ import annotations

import time

import pytest
import torch
from torch.export import Dim

from tests.build.expanding import STEPS, Stepwise
from tests.gpu.test_wrong_kernels_gpu import BOUND, DTYPES, error

pytestmark = pytest.mark.gpu
SECONDS = 60
"""To compile and to run, with each kernel compiled for the GPU."""


@DTYPES
@pytest.mark.parametrize("rows", ["rows", "any rows"])
@pytest.mark.parametrize("name", STEPS)
def test_steps_agree_with_eager(name: str, rows: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(STEPS[name][1]).to("cuda", dtype)
    start = time.monotonic()
    dims = ({0: Dim("rows", min=2, max=9)},) if rows == "any rows" else None
    assert error(Stepwise(name).eval(), (x,), dims, min_block_size=1) <= BOUND[dtype]
    assert time.monotonic() - start < SECONDS
