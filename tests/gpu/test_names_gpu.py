"""Engines whose inputs or dims have other names in the plan than the network gave them."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

import pipeline
from pipeline.trt import CAPABILITIES
from tests.build.test_names_taken import ROWS, TWICE, Diagonal, EverySecond

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


@pytest.mark.parametrize("graphs", [False, True], ids=["", "graphs"])
def test_dims_that_the_build_names(graphs: bool) -> None:
    model, rows = Diagonal().eval().cuda(), Dim("rows", min=2, max=4)
    compile = pipeline.default(min_block_size=1, torch_executed_ops=["aten.fill.Scalar"], cuda_graphs=graphs)
    args = torch.randn(2, 7, device="cuda"), torch.randn(2, 3, device="cuda")
    module = compile(model, args=args, dynamic_shapes=({0: rows}, {0: rows})).module()
    for count in (2, 4, 3, 2):
        args = torch.randn(count, 7, device="cuda"), torch.randn(count, 3, device="cuda")
        torch.testing.assert_close(module(*args), model(*args))
