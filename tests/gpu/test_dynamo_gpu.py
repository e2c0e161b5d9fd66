"""``torch.compile`` with our backend on a GPU: sizes and weights that change, and a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from tests.gpu.refits import needs_refit
from tests.test_dynamo import in_place, view_of_input, views_of_result, written_twice

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """Dynamo without what other tests compiled."""
    torch.compiler.reset()
    with torch.no_grad():
        yield
    torch.compiler.reset()


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """fp32 products are TF32 on a GPU."""
    assert actual.device == expected.device
    torch.testing.assert_close(actual, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("immutable", [True, pytest.param(False, marks=needs_refit)], ids=["rebuilt", "refitted"])
@pytest.mark.parametrize("graphs", [False, True], ids=["enqueued", "cuda graphs"])
def test_sizes_and_weights_that_change(immutable: bool, graphs: bool) -> None:
    torch.manual_seed(0)
    layers = nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)
    model = nn.Sequential(*layers).eval().cuda()
    compile = pipeline.default(require_full_compilation=True, immutable_weights=immutable, cuda_graphs=graphs)
    compiled = torch.compile(model, backend=pipeline.backend(compile))
    for size in (2, 5, 5, 5, 7, 40):
        x = torch.randn(size, 64, device="cuda")
        close(compiled(x), model(x))
    model[0].weight.data.mul_(2)  # counted by us alone
    close(compiled(x), model(x))
    model[3].bias.add_(1)
    close(compiled(x), model(x))


def test_a_cache_that_the_model_writes_to() -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.register_buffer("sum", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.sum.add_(x.sum(0))
            return self.linear(x) + self.sum

    model, eager = Cache().eval().cuda(), Cache().eval().cuda()
    eager.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend=pipeline.backend(pipeline.default(min_block_size=1)))
    for _ in range(3):
        x = torch.randn(4, 8, device="cuda")
        close(compiled(x), eager(x))
        close(model.sum, eager.sum)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("graphs", [False, True], ids=["enqueued", "cuda graphs"])
def test_graphs_without_inputs_give_what_they_make_where_eager_does(device: str, graphs: bool) -> None:
    def function() -> torch.Tensor:
        return torch.ones(3, device=device) * 2 + 1

    class Weights(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale = torch.exp(self.weight)
            torch._dynamo.graph_break()
            return x * scale

    compile = pipeline.default(cuda_graphs=graphs)
    compiled, model = torch.compile(function, backend=pipeline.backend(compile)), Weights(4, 4).to(device)
    other, x = torch.compile(model, backend=pipeline.backend(compile)), torch.randn(4, 4, device=device)
    for _ in range(4):
        close(compiled(), function())
        close(other(x), model(x))


@pytest.mark.parametrize("function", [in_place, view_of_input, views_of_result, written_twice])
@pytest.mark.parametrize("graphs", [False, True], ids=["enqueued", "cuda graphs"])
def test_what_is_written_to_a_view_after_a_graph_break(function: Callable[..., Any], graphs: bool) -> None:
    compiled = torch.compile(function, backend=pipeline.backend(pipeline.default(cuda_graphs=graphs)))
    for _ in range(4):
        x = torch.randn(4, 3, device="cuda")
        mine = x.clone()
        for actual, expected in zip(compiled(mine), function(x), strict=True):
            close(actual, expected)
        close(mine, x)
