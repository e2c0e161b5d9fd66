"""Results of engines, PyTorch segments and CUDA graphs on a GPU are the caller's, or the tensor that eager gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pipeline
from tests.runtime.test_ownership import IN_TORCH, ITSELF, NEW, Module, X, memory, ones, overwrite

pytestmark = pytest.mark.gpu

PLACES = pytest.mark.parametrize("options", [{}, IN_TORCH], ids=["engine", "torch"])
GRAPHS = pytest.mark.parametrize("graphs", [False, True], ids=["plain", "graphs"])


def compiled(model: Module, options: dict[str, Any], graphs: bool) -> Any:
    """The module on TensorRT."""
    return pipeline.default(**options)(model, args=(X.cuda(),)).module(executor="tensorrt", cuda_graphs=graphs)


@GRAPHS
@PLACES
@pytest.mark.parametrize("name", NEW)
def test_what_is_new_is_the_callers(name: str, options: dict[str, Any], graphs: bool) -> None:
    model = Module(NEW[name]).eval().cuda()
    module, kept = compiled(model, options, graphs), []
    for _ in range(5):
        x = X.cuda()
        ours = module(x)
        torch.testing.assert_close(ours, model(x), rtol=1e-3, atol=1e-3)
        assert torch.equal(x.cpu(), X)
        assert not memory(ours) & memory([x, *kept])
        overwrite(ours)
        kept.append(ours)


@GRAPHS
@PLACES
@pytest.mark.parametrize("name", ITSELF)
def test_what_eager_gives_as_it_is_is_that_very_tensor(name: str, options: dict[str, Any], graphs: bool) -> None:
    model = Module(ITSELF[name]).eval().cuda()
    module = compiled(model, options, graphs)
    ours_in, theirs_in = X.cuda(), X.cuda()
    ours, theirs = [module(ours_in) for _ in range(5)], [model(theirs_in) for _ in range(5)]
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    assert ones([ours_in, *ours]) == ones([theirs_in, *theirs])


@GRAPHS
@pytest.mark.parametrize("name", ["parameter", "written buffer"])
def test_inputs_elsewhere_get_results_there(name: str, graphs: bool) -> None:
    model, on_cpu = Module(ITSELF[name]).eval().cuda(), Module(ITSELF[name]).eval()
    module = compiled(model, {}, graphs)
    for _ in range(4):
        ours = module(X.clone())
        torch.testing.assert_close(ours, on_cpu(X.clone()), rtol=1e-3, atol=1e-3)


def test_a_number_on_the_cpu_beside_a_tensor_on_the_gpu() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, times: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return x * times + 1

    times, x = torch.tensor(2.0), torch.randn(4, device="cuda")
    module = pipeline.default()(Scaled().eval(), args=(times, x)).module(executor="tensorrt")
    torch.testing.assert_close(module(times, x), x * 2 + 1)
