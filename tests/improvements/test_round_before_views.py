"""round_before_views: a cast to bfloat16 follows what computes, with the values that it had behind the views."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from pipeline import quirks
from tests.improvements.programs import agree, decomposed, improved, targets

Tensor = torch.Tensor
MODULE = importlib.import_module("pipeline.improvements.round_before_views")
X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    """A function of a linear layer's result, [N, 6, 24]."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(16, 24)

    def forward(self, x: Tensor) -> Any:
        """What the function gives."""
        return self.function(self.linear(x))


@pytest.fixture(autouse=True)
def as_on_1_4() -> Iterator[None]:
    with quirks.assume("halves-behind-matmuls"):
        yield


def heads(x: Tensor) -> Tensor:
    return x.view(-1, 6, 2, 12).transpose(1, 2).to(torch.bfloat16)


def turned(x: Tensor) -> Tensor:
    return x.transpose(1, 2).bfloat16()


def more_dims(x: Tensor) -> Tensor:
    return x.relu().unsqueeze(1).to(torch.bfloat16) * 2


@pytest.mark.parametrize("dynamic", [None, {"x": {0: Dim("batch", max=4)}}], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", [heads, turned, more_dims], ids=lambda f: f.__name__)
def test_the_cast_comes_first(function: Callable[..., Any], dynamic: Any) -> None:
    before = decomposed(Model(function), X, dynamic_shapes=dynamic)
    after = improved(before, "round_before_views")
    agree(before, after, X, rtol=0, atol=0)
    found = targets(after)
    assert sorted(found) == sorted(targets(before))
    assert found[found.index("_to_copy.default") - 1] in ("linear.default", "relu.default")
    assert improved(after, "round_before_views").graph_module.code == after.graph_module.code


def halves(x: Tensor) -> Tensor:
    return x.transpose(1, 2).half()


def read_twice(x: Tensor) -> Tensor:
    turned = x.transpose(1, 2)
    return turned.bfloat16() + turned.sum()


def returned(x: Tensor) -> tuple[Tensor, Tensor]:
    turned = x.transpose(1, 2)
    return turned.bfloat16(), turned


def cut(x: Tensor) -> Tensor:
    return x[:, 1:].bfloat16()


@pytest.mark.parametrize("function", [halves, read_twice, returned, cut], ids=lambda f: f.__name__)
def test_others_stay(function: Callable[..., Any]) -> None:
    before = decomposed(Model(function), X)
    assert targets(improved(before, "round_before_views")) == targets(before)


@quirks.without("halves-behind-matmuls")
def test_nothing_moves_where_such_kernels_are_right() -> None:
    before = decomposed(Model(turned), X)
    assert targets(improved(before, "round_before_views")) == targets(before)
