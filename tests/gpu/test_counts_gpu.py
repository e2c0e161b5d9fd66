"""Models that decide by how many rows data leaves, with the module on the GPU."""

from __future__ import annotations

import pytest
import torch

import pipeline
from tests.frontend.counting import FUNCTIONS, INPUTS, Calls, Counting
from tests.gpu.test_control_flow_gpu import agrees

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_data_chooses_how_many_rows_there_are(function: Counting, dtype: torch.dtype) -> None:
    given = [x.to("cuda", dtype) for x in INPUTS]
    model = Calls(function).eval().cuda()
    run = pipeline.default(min_block_size=1)(model, (given[0],)).module("tensorrt")
    for x in given:
        agrees(run(x.clone()), model(x.clone()), dtype)
