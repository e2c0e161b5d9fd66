"""Evaluators: sizes reach operators as expressions, conditions and assertions leave no layer."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline.converters import DYNAMO_CONVERTERS
from pipeline.converters.declare import Rejection

aten = torch.ops.aten

ARITHMETIC: dict[str, Callable[[Any], Any]] = {
    "add": lambda n: n + 1,
    "sub": lambda n: n - 1,
    "mul": lambda n: n * 3,
    "floordiv": lambda n: n // 2,
    "mod": lambda n: n % 2 + 3,
    "pow": lambda n: n**2,
    "neg": lambda n: 20 + -n,
    "max": lambda n: torch.sym_max(n, 6),
    "min": lambda n: torch.sym_min(n, 6),
}


class Sized(nn.Module):
    """A tensor as long as a function of the batch says, and the batch itself."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        """[N, 3] -> [f(N)], N"""
        return torch.full((self.function(x.shape[0]),), 2.0) * x.sum(), x.shape[0]


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_on_sizes_is_the_engines(name: str) -> None:
    model = Sized(ARITHMETIC[name]).eval()
    batch = torch.export.Dim("batch", min=4, max=8)
    compiled = pipeline.default(min_block_size=1)(model, args=(torch.ones(5, 3),), dynamic_shapes=({0: batch},))
    assert not compiled.coverage.fallback
    for n in (4, 5, 8):
        result, size = compiled(torch.ones(n, 3))
        expected, _ = model(torch.ones(n, 3))
        assert size == n
        torch.testing.assert_close(result, expected)


def graph(target: Any, *args: Any, value: Any) -> torch.fx.Node:
    node = torch.fx.Graph().call_function(target, args)
    node.meta["val"] = value
    return node


@pytest.mark.parametrize("target", [operator.eq, operator.lt, torch.sym_not])
def test_a_condition_is_known_or_stays_in_python(target: Any) -> None:
    assert graph(target, value=True) in DYNAMO_CONVERTERS
    refused = DYNAMO_CONVERTERS.explain(graph(target, value=torch.empty(0)))
    assert isinstance(refused, tuple)
    assert isinstance(refused[0], Rejection)
    assert "which engines do not support" in refused[0].reason


def test_a_quotient_of_sizes_that_is_a_float_stays_in_python() -> None:
    assert graph(operator.truediv, 4, 2, value=2) in DYNAMO_CONVERTERS
    assert graph(operator.truediv, 3, 2, value=1.5) not in DYNAMO_CONVERTERS


def test_assertions_about_tensors_make_no_layer() -> None:
    class Asserts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            aten._assert_tensor_metadata(x, dtype=torch.float32)
            return x + 1

    compiled = pipeline.default(min_block_size=1)(Asserts().eval(), args=(torch.ones(2),))
    assert not compiled.coverage.fallback
    assert [layer.kind for layer in compiled.networks[0].layers] == ["CONSTANT", "ELEMENTWISE"]
