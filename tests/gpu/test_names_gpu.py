"""Engines whose inputs have other names in the plan, since TensorRT has tensors of these names."""

from __future__ import annotations

import pytest
import torch

import pipeline
from pipeline.trt import CAPABILITIES
from tests.build.test_names_taken import ROWS, TWICE, EverySecond

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(CAPABILITIES.flavour != "tensorrt_rtx", reason="seen with TensorRT-RTX"),
]


@pytest.mark.parametrize("graphs", [False, True], ids=["", "graphs"])
def test_taken_names(graphs: bool) -> None:
    model = EverySecond().eval().cuda()
    compile = pipeline.default(min_block_size=1, torch_executed_ops=[TWICE], cuda_graphs=graphs)
    args = torch.randn(5, 4, device="cuda"), torch.randn(5, 4, device="cuda")
    compiled = compile(model, args=args, dynamic_shapes=ROWS)
    assert "add" in compiled.engines[-1].bindings
    module = compiled.module()
    for rows in (2, 5, 8, 5):
        args = torch.randn(rows, 4, device="cuda"), torch.randn(rows, 4, device="cuda")
        torch.testing.assert_close(module(*args), model(*args))
