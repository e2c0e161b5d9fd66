"""Older code, which eager takes: ``x.data``, and masks of bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import pipeline
from pipeline.stages.unbuilt import unbuilt

X = torch.linspace(-2, 3, 24).reshape(2, 3, 4)


class Older(nn.Module):
    """Calls a function with its weight."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.linspace(0, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        """[2, 3, 4] -> the same"""
        return self.function(x, self.weight)


def reads(x: Tensor, weight: Tensor) -> Tensor:
    return (x * 2).data + weight.data


def writes_into_zeros(x: Tensor, weight: Tensor) -> Tensor:
    made = x.new_zeros(2, 3, 4)
    made.data[:, 1:].copy_(x[:, :2])
    return made + weight


def writes_into_a_value(x: Tensor, weight: Tensor) -> Tensor:
    made = x * weight
    made.data.mul_(2)
    made.data[:, 0] = weight
    return made - 1


def chooses(x: Tensor, weight: Tensor) -> Tensor:
    mask = (x > 0).to(torch.uint8)
    return torch.where(mask, x, weight) + torch.where(condition=mask[:1], input=x, other=-x) + x.where(mask, weight)


@pytest.mark.parametrize("device", [None, "cuda"])
@pytest.mark.parametrize("function", [reads, writes_into_zeros, writes_into_a_value, chooses], ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore:.*uint8 condition tensor")
def test_it_is_what_eager_computes(function: Callable[[Tensor, Tensor], Tensor], device: str | None) -> None:
    model = Older(function).eval()
    compile = pipeline.default(require_full_compilation=True, device=device).replace("build", unbuilt)
    torch.testing.assert_close(compile(model, (X,)).module("reference")(X * 3), model(X * 3))
