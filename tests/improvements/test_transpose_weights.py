"""transpose_weights: products by a constant become linear layers, where profiles share the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline.stages.improve import Improve
from tests.improvements.programs import agree, improved, targets
from tests.improvements.test_select_parts import FEW, program_of

X = torch.randn(1, 3, 8)


class Product(nn.Module):
    """A product [1, rows, inner] with a matrix [inner, width] of the model's, and a vector to add."""

    def __init__(self, multiply: Callable[..., torch.Tensor], inner: int = 8, width: int = 12) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inner, width)), nn.Parameter(torch.randn(width))
        self.multiply = multiply

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[1, rows, inner] -> [1, rows, width]"""
        return self.multiply(x, self.weight, self.bias).exp()


def rows(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1, x.shape[-1])


@pytest.mark.parametrize(
    "multiply",
    [
        lambda x, w, b: torch.addmm(b, rows(x), w).view(1, -1, 12),
        lambda x, w, b: torch.mm(rows(x), w).view(1, -1, 12),
        lambda x, w, b: x @ w,
    ],
)
def test_products_become_linear_layers(multiply: Callable[..., torch.Tensor]) -> None:
    before = program_of(Product(multiply))
    after = improved(before, "transpose_weights")
    assert "linear.default" in targets(after) and not {"addmm.default", "mm.default", "matmul.default"} & {
        *targets(after)
    }
    for length in (1, 5):
        agree(before, after, torch.randn(1, length, 8), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "multiply",
    [
        lambda x, w, b: torch.addmm(b, rows(x), w, alpha=2).view(1, -1, 12),
        lambda x, w, b: torch.addmm(b[None], rows(x), w).view(1, -1, 12),
        lambda x, w, b: x @ w + (x * 2) @ w,
        lambda x, w, b: x @ (w + x.mean()),
        lambda x, w, b: x @ w[None],
    ],
)
def test_other_products_stay(multiply: Callable[..., torch.Tensor]) -> None:
    before = program_of(Product(multiply))
    assert targets(improved(before, "transpose_weights")) == targets(before)


def test_one_profile_stays() -> None:
    before = program_of(Product(lambda x, w, b: x @ w), profiles=None)
    assert targets(improved(before, "transpose_weights")) == targets(before)


def test_an_engine_has_its_weights_once() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (Product(lambda x, w, b: x @ w + b, 1024, 1024) for _ in range(2))

        def forward(self, x: torch.Tensor) -> Any:
            """[1, rows, 1024] -> the same"""
            return self.second(self.first(x))

    model = Two().half().eval()
    compile = pipeline.default(require_full_compilation=True)

    def size(profiles: Any, *without: str) -> int:
        x = torch.randn(1, 1 if profiles == FEW[:1] else 3, 1024).half()
        improve = Improve().without("split_products", *without)  # the same for prompts alone, which would be split
        made = compile.replace("improve", improve)(model, args=(x,), profiles=profiles)
        return sum(len(engine.plan) for engine in made.engines)

    weights = 2 * model.first.weight.nbytes
    alone = max(size([each]) for each in FEW)
    assert size(FEW, "transpose_weights") > alone + weights, "the library no longer copies them: leave the pass out"
    assert size(FEW) < alone + weights / 2
