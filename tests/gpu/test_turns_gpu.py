"""Mixtures of experts as people write them, with the module on the GPU: each row goes to the experts that eager takes.

Gates and inputs have few bits, so that what is chosen is exact, also in TF32; biases are less than one of these apart,
so that no two gates are equal.
"""

from __future__ import annotations

import pytest
import torch

import pipeline
from tests.frontend import experts
from tests.frontend.experts import RIGHT, Forward, Mixture
from tests.frontend.test_turns import DIMS
from tests.gpu.test_control_flow_gpu import agrees

pytestmark = pytest.mark.gpu
OTHERS = (experts.until_small, experts.ends_in_many_ways, experts.ends_where_python_says, experts.skips)
OTHERS += (experts.another_place, experts.before_it_is_written)
BY_THE_GATE = [function for function in RIGHT if function not in OTHERS]


def gated(function: Forward, dtype: torch.dtype) -> Mixture:
    model = Mixture(function).eval()
    with torch.no_grad():
        model.gate.weight.copy_(model.gate.weight.mul(8).round().div(4))
        model.gate.bias.copy_(torch.arange(experts.COUNT) / 256)
    return model.to("cuda", dtype)


def calls(dtype: torch.dtype) -> list[torch.Tensor]:
    """Rows that go to many experts, rows that all go to two, and one row."""
    torch.manual_seed(1)
    x = torch.randint(-8, 9, (40, 8)).to("cuda", dtype) / 8
    return [x[:6], x, x[7:8].repeat(5, 1), x[9:11], -x[:23]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("function", BY_THE_GATE, ids=lambda f: f.__name__)
def test_each_row_goes_to_its_experts(function: Forward, dtype: torch.dtype) -> None:
    model, given = gated(function, dtype), calls(dtype)
    run = pipeline.default(min_block_size=1)(model, (given[0],), dynamic_shapes=DIMS).module("tensorrt")
    for x in given:
        agrees(run(x.clone()), model(x.clone()), dtype)
