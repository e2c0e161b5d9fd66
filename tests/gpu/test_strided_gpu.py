"""``as_strided`` of views, with the module on the GPU, where engines give what lies in memory in their own way."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import pipeline
from tests.capture.test_as_strided import FORMS, TORCH, Strided, chunks

pytestmark = pytest.mark.gpu
IN_BOTH = pytest.mark.parametrize("executed", [[], TORCH], ids=["engine", "PyTorch"])


def of_few_bits(*sizes: int) -> Tensor:
    """Exact as TF32 too."""
    return torch.randn(sizes, device="cuda").mul(4).round().div(4)


@IN_BOTH
@pytest.mark.parametrize("dynamic", [False, True], ids=["one size", "any size"])
@pytest.mark.parametrize("form", FORMS)
def test_memory_is_read(form: str, dynamic: bool, executed: list[str]) -> None:
    function, sizes = FORMS[form]
    dims = [{0: Dim("n", min=2, max=9)}] if dynamic else None
    compile = pipeline.default(min_block_size=1, torch_executed_ops=executed)
    run = compile(Strided(function).eval(), (of_few_bits(*sizes),), dynamic_shapes=dims).module("tensorrt")
    for size in (7, sizes[0]) if dynamic else (sizes[0],):
        x = of_few_bits(size, *sizes[1:])
        assert torch.equal(run(x), function(x))


@IN_BOTH
@pytest.mark.parametrize("graphs", [False, True], ids=["", "graphs"])
def test_windows_overlap(executed: list[str], graphs: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 8), Strided(chunks)).eval().cuda()
    x = torch.randn(6, 2, 8, device="cuda")
    compiled = pipeline.default(min_block_size=1, torch_executed_ops=executed)(model, (x,))
    run = compiled.module("tensorrt", cuda_graphs=graphs)
    for given in (x, x * 2, x - 1):
        torch.testing.assert_close(run(given), model(given), atol=5e-3, rtol=5e-3)
