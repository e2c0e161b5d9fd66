"""Arithmetic on sizes, as users write it, stays in one engine (or on the host), and is right at every size."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from pipeline import Compiled

F = nn.functional


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        """Whatever the function gives."""
        return self.function(*args)


def compiled(function: Callable[..., Any], dims: Any, *args: Any, **options: Any) -> Compiled:
    """The function compiled with one dynamic_shapes entry for each input."""
    compile = pipeline.default(min_block_size=1, **options)
    return compile(Calls(function).eval(), args=args, dynamic_shapes=(tuple(dims),))


ROWS = {0: Dim("rows", min=1, max=9)}
BOTH = {0: Dim("rows", min=1, max=9), 1: Dim("columns", min=1, max=6)}

ONE_ENGINE: dict[str, Callable[[Any], Any]] = {
    "size as a factor": lambda x: x * x.shape[0],
    "position ids": lambda x: x + torch.arange(x.shape[1]),
    "mean by hand": lambda x: x.sum(0) / x.shape[0],
    "scale by a root": lambda x: torch.softmax(x @ x.T / x.shape[1] ** 0.5, -1) @ x,
    "sqrt": lambda x: x * math.sqrt(x.shape[0] * x.shape[1]),
    "reciprocal": lambda x: x * (1 / x.shape[0]),
    "float division": lambda x: x + x.shape[0] / x.shape[1],
    "full of a quotient": lambda x: torch.full((x.shape[1],), x.shape[0] / 2) + x,
    "exponent": lambda x: x.abs() ** (x.shape[0] / 2),
    "compared with a quotient": lambda x: torch.where(x < 1 / x.shape[0], x, x * 2),
    "ceil-div by minus": lambda x: x.sum() + x.new_zeros(-(-x.shape[0] // 2)),
    "ceil-div by math": lambda x: torch.sin(x)[: math.ceil(x.shape[0] / 2)] + 1,
    "floor of a fraction": lambda x: x.sum() + x.new_ones(math.floor(x.shape[0] * 0.7)),
    "round": lambda x: x.sum() + x.new_ones(round(x.shape[0] / 2)),
    "up to a multiple": lambda x: F.pad(x, (0, 0, 0, -x.shape[0] % 4)).view(-1, 4, x.shape[1]).sum(1),
    "distance": lambda x: x * abs(x.shape[0] - 5) + x.new_ones(abs(x.shape[0] - x.shape[1])).sum(),
    "half of the rows": lambda x: x[x.shape[0] // 2 :] * 2,
    "sym_min": lambda x: x[: torch.sym_min(x.shape[0], 3)] * 2,
    "sym_max": lambda x: x.sum() + x.new_zeros(torch.sym_max(x.shape[0], x.shape[1])),
    "view with two dims": lambda x: (x + 1).view(x.shape[1], x.shape[0]).T.reshape(-1, 1, x.shape[1]) * 2,
    "expand": lambda x: x.unsqueeze(1).expand(x.shape[0], x.shape[1], x.shape[1]) + 1,
    "causal mask": lambda x: (x @ x.T).masked_fill(torch.ones(x.shape[0], x.shape[0]).triu(1) > 0, -1e9),
    "concatenation": lambda x: torch.cat([x, x.new_zeros(x.shape[0] + 1, x.shape[1])]) * 2,
    "interpolation": lambda x: F.interpolate(x[None, None], scale_factor=1.5, mode="bilinear") * 2,
    "mixed": lambda x: x.view(-1)[: x.numel() // 2 + 1] * (x.shape[0] * x.shape[1] - x.numel() + 2),
}


@pytest.mark.parametrize("name", ONE_ENGINE)
def test_arithmetic_on_sizes_cuts_no_engine(name: str) -> None:
    function = ONE_ENGINE[name]
    result = compiled(function, [BOTH], torch.randn(4, 3))
    assert [s.kind for s in result.partitioned.segments] == ["engine"], result.coverage
    module = result.module(executor="reference")
    for rows, columns in ((1, 1), (1, 6), (5, 1), (4, 3), (9, 6)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(module(x), function(x), rtol=2e-5, atol=2e-5)


def test_numbers_come_back_as_python_has_them() -> None:
    def function(x: torch.Tensor) -> Any:
        n, m = x.shape
        return x + 1, n, n * m - 1, n / m, n % 2 == 0, {"half": n // 2}

    module = compiled(function, [BOTH], torch.randn(4, 3)).module(executor="reference")
    for shape in ((1, 1), (5, 4), (9, 6)):
        x = torch.randn(shape)
        ours, theirs = module(x), function(x)
        torch.testing.assert_close(ours, theirs)
        assert [type(v) for v in ours] == [type(v) for v in theirs]


def test_torch_segments_are_given_sizes_and_numbers() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x * 2) + x.shape[0] / 3
        return torch.relu(y[: math.ceil(x.shape[0] / 2)] * x.shape[1]) + x.shape[0] ** 0.5

    refused = {"aten.slice.Tensor", "aten.mul.Tensor"}
    result = compiled(function, [BOTH], torch.randn(4, 3), torch_executed_ops=refused)
    assert {s.kind for s in result.partitioned.segments} == {"engine", "torch"}
    for shape in ((1, 1), (5, 4), (9, 6)):
        x = torch.randn(shape)
        torch.testing.assert_close(result.module(executor="reference")(x), function(x), rtol=2e-5, atol=2e-5)


def test_no_engine_is_made_of_sizes_alone() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).new_zeros(x.shape[0] * 2 + 1) + torch.arange(x.shape[0] * 2 + 1) * x.shape[1]

    result = compiled(function, [BOTH], torch.randn(4, 3), torch_executed_ops={"aten.relu.default", "aten.add.Tensor"})
    for segment in result.partitioned.engine_segments:
        assert any(n.startswith(("mul", "relu")) for n in segment.nodes), segment
    x = torch.randn(5, 2)
    torch.testing.assert_close(result.module(executor="reference")(x), function(x))


def test_a_float_that_a_converter_wants_to_know_runs_in_pytorch() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.elu(x * 2, alpha=x.shape[0] / 2) + 1

    result = compiled(function, [ROWS], torch.randn(4, 3))
    assert "symbolic float" in {f.target: f.reason for f in result.coverage.fallback}["aten.elu.default"]
    x = torch.randn(7, 3)
    torch.testing.assert_close(result.module(executor="reference")(x), function(x))
