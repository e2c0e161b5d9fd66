"""Indices that are seen not to be negative cost no layers; others count from the end, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pipeline

X = torch.arange(20.0).reshape(5, 4)
N = torch.export.Dim("n", min=2, max=3)


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any, y: Any) -> Any:
        return self.function(x, y)


COUNTED = {
    "arange": lambda x, y: x[torch.arange(y.shape[0])],
    "a later start": lambda x, y: x[torch.arange(1, y.shape[0] + 1)[:, None]],
    "a sum": lambda x, y: x[torch.arange(y.shape[0]) + 2],
    "places": lambda x, y: x[y.argmax(1)],
    "bounded": lambda x, y: x[y.long()[:, 0].clamp(min=0)],
    "turned around": lambda x, y: x[torch.arange(y.shape[0]).flip(0).roll(1)],
    "picked": lambda x, y: x[torch.arange(y.shape[0])[y.argmax(1)]],
    "sorted": lambda x, y: x[y.argmax(1).sort()[0]],
    "taken apart": lambda x, y: x[y.long().clamp(min=0, max=4).split(1, 1)[1]],
    "bounded, in a row": lambda x, y: x[y.long().clamp(min=0, max=4).flatten()],
}
OTHERS = {
    "a difference": lambda x, y: x[torch.arange(y.shape[0]) - 1],
    "a subtracted term": lambda x, y: x[
        torch.add(torch.zeros(1, dtype=torch.int64), torch.arange(y.shape[0]), alpha=-1)
    ],
    "an early start": lambda x, y: x[torch.arange(-1, y.shape[0])],
    "data": lambda x, y: x[y.long()[:, 0]],
}


def compiled(function: Callable[..., Any], y: torch.Tensor) -> pipeline.Compiled:
    compile = pipeline.default(min_block_size=1, require_full_compilation=True)
    return compile(Function(function).eval(), args=(X, y), dynamic_shapes=({}, {0: N}))


@pytest.mark.parametrize("function", COUNTED.values(), ids=COUNTED)
def test_counted(function: Callable[..., Any]) -> None:
    y = torch.tensor([[1.0, 0.0], [3.0, 4.0], [2.0, 2.5]])
    result = compiled(function, y)
    assert not [n for n in result.networks[0].layers if n.kind == "SELECT" and n.name.startswith("index")]
    assert torch.equal(result.module("reference")(X, y), function(X, y))


@pytest.mark.parametrize("function", OTHERS.values(), ids=OTHERS)
def test_others_count_from_the_end(function: Callable[..., Any]) -> None:
    y = torch.tensor([[-1.0, 0.0], [3.0, 2.0], [-5.0, 4.0]])
    result = compiled(function, y)
    assert [n for n in result.networks[0].layers if n.kind == "SELECT" and n.name.startswith("index")]
    assert torch.equal(result.module("reference")(X, y), function(X, y))
