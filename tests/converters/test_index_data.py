"""Numbers that Python reads from tensors, and shapes that depend on data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pipeline
from pipeline.converters import index_data
from pipeline.stages.refit_map import refit_map
from pipeline.stages.unbuilt import unbuilt

X = torch.arange(12.0).reshape(3, 4)


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def compiled(function: Callable[..., Any], *args: Any, **fields: Any) -> pipeline.Compiled:
    return pipeline.default(min_block_size=1, **fields)(Function(function).eval(), args=args)


@pytest.mark.parametrize("index", [0, 2, -1])
def test_an_element_named_by_a_tensor(index: int) -> None:
    result = compiled(lambda x, i: x[i] + 1, X, torch.tensor(1), require_full_compilation=True)
    assert torch.equal(result.module("reference")(X, torch.tensor(index)), X[index] + 1)


def test_an_int_as_a_factor() -> None:
    result = compiled(lambda x, i: x * i.item(), X, torch.tensor(3), require_full_compilation=True)
    assert torch.equal(result.module("reference")(X, torch.tensor(5)), X * 5)


def test_an_int_in_a_shape_stays_in_python() -> None:
    result = compiled(lambda x, i: (x * 2)[: i.item()] + 1, X, torch.tensor(2))
    assert "item" in {f.node for f in result.coverage.fallback}
    assert torch.equal(result.module("reference")(X, torch.tensor(1)), (X * 2)[:1] + 1)


@pytest.mark.skipif(index_data.CAPABILITIES.nonzero, reason="this TensorRT runs NonZero")
@pytest.mark.parametrize(
    "function", [lambda x: x[x > 5] * 2, lambda x: (x > 5).nonzero() * 2], ids=["index", "nonzero"]
)
def test_without_nonzero_the_reason_names_tensorrt(function: Callable[..., Any]) -> None:
    result = compiled(function, X)
    assert any(f"{index_data.CAPABILITIES.flavour}" in f.reason for f in result.coverage.fallback)
    assert torch.equal(result.module("reference")(X), function(X))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[x > 5],
        lambda x: x.nonzero(),
        lambda x: x[:, x[0] > 1] + 1,
        lambda x: x[x[:, 0] > 1],
        lambda x: x[None][:, x > 5],
        lambda x: x.masked_select(x[0] > 1),
        lambda x: x[0, 1].nonzero(),
        lambda x: x[1, 1].masked_select(x[0, 1] > 0),
        lambda x: torch.stack(torch.where(x > 0)[::-1]),
        lambda x: x.nonzero(as_tuple=True)[1] * 2,
        lambda x: torch.where(x[0, 1] > 0)[0],
    ],
    ids=[
        "mask",
        "nonzero",
        "columns",
        "rows",
        "after a dim",
        "masked_select",
        "nonzero of rank 0",
        "masked_select of rank 0",
        "where",
        "nonzero as tuple",
        "where of rank 0",
    ],
)
@pytest.mark.usefixtures("runs_nonzero")
def test_networks_with_nonzero(function: Callable[..., Any]) -> None:
    """What the tensorrt package would be given, on the reference executor."""
    to_networks = pipeline.default(min_block_size=1, require_full_compilation=True).until("convert")
    converted = to_networks(Function(function).eval(), args=(X,))
    module = refit_map(unbuilt(converted)).module("reference")
    for x in (X, -X, X - 8):
        assert torch.equal(module(x), function(x))
