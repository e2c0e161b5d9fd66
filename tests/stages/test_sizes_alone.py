"""What is computed for its size alone is not computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import pipeline
from benchmarks.kernels import CAPABILITY
from pipeline.program import is_operator
from pipeline.trt import CAPABILITIES
from tests.improvements.programs import values

aten = torch.ops.aten
N = Dim("n", min=2, max=9)


class Sized(nn.Module):
    """A function of a tensor, and layers for it."""

    def __init__(self, function: Callable[[Sized, Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("state", torch.zeros(3))
        self.function = function

    def forward(self, x: Tensor) -> Any:
        """[N, 4] -> any"""
        return self.function(self, x)


def program(function: Callable[[Sized, Tensor], Any], rows: Any = N) -> pipeline.Program:
    captured = pipeline.capture(Sized(function).eval(), (torch.randn(5, 4),), dynamic_shapes=({0: rows},))
    return pipeline.default().until("decompose")(captured)


def operators(made: pipeline.Program) -> list[Any]:
    return [node.target for node in made.graph.nodes if is_operator(node)]


def like_layer(m: Sized, x: Tensor) -> Tensor:
    return torch.full_like(m.linear(x), 0.5)


def like_view(m: Sized, x: Tensor) -> Tensor:
    return torch.ones_like(x.ravel())


def like_half(m: Sized, x: Tensor) -> Tensor:
    return torch.zeros(x.exp()[: x.shape[0] // 2].shape[0] + 1)


def times_size(m: Sized, x: Tensor) -> Tensor:
    return torch.arange(m.linear(x).reshape(-1).shape[0])


@pytest.mark.parametrize("function", [like_layer, like_view, like_half, times_size])
@pytest.mark.parametrize("rows", [N, 2 * Dim("half", min=1, max=4)], ids=["n", "2n"])
def test_only_the_size_is_computed(function: Callable[[Sized, Tensor], Any], rows: Any) -> None:
    made = program(function, rows)
    assert {*operators(made)} <= {aten.full.default, aten.arange.default}


@pytest.mark.parametrize("function", [like_layer, like_view, like_half, times_size])
@pytest.mark.parametrize("outside", [(), ("aten.full.default", "aten.arange.default")], ids=["engine", "torch"])
def test_it_is_right_at_every_size(function: Callable[[Sized, Tensor], Any], outside: tuple[str, ...]) -> None:
    model, x = Sized(function).eval(), torch.randn(5, 4)
    compile = pipeline.default(min_block_size=1, torch_executed_ops=outside)
    module = compile(model, args=(x,), dynamic_shapes=({0: N},)).module()
    for rows in (2, 5, 9):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(module(x), model(x))


SPELLED: dict[str, Callable[[Any], Any]] = {
    "trunc": lambda n: int(n * 0.7),
    "round": lambda n: round(n * 0.7) + round(n / 2),
    "floor and ceil": lambda n: math.floor(n * 0.7) + math.ceil(n * 0.3),
    "root": lambda n: int(math.sqrt(n) * 2) + int(n**0.5),
    "distance": lambda n: abs(n - 4) + 1,
    "ends": lambda n: min(n, 4) + max(n // 2, 3) - n % 3,
    "powers": lambda n: int(n**1.5) + n**2,
    "conditions": lambda n: torch.sym_ite(n > 4, n, 2 * n),
}


@pytest.mark.parametrize("name", SPELLED)
def test_each_function_of_sizes_is_spelled(name: str) -> None:
    def like_part(m: Sized, x: Tensor) -> Tensor:
        return torch.ones_like(x.exp()[:1].expand(SPELLED[name](x.shape[0]), 4))

    made = program(like_part)
    assert {*operators(made)} <= {aten.full.default}
    for rows in (2, 5, 9):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(values(made, x)[0], like_part(Sized(like_part), x))


def test_what_is_read_too_stays() -> None:
    def both(m: Sized, x: Tensor) -> Any:
        made = m.linear(x)
        return made, torch.full_like(made, 0.5)

    found = program(both)
    assert aten.linear.default in operators(found)
    reads = [node.args[0] for node in found.graph.nodes if node.target is aten.sym_size.int]
    assert all(node.op == "placeholder" or node.target is aten.linear.default for node in reads)


def test_sizes_that_data_decides_stay() -> None:
    assert aten.nonzero.default in operators(program(lambda m, x: torch.ones(x.nonzero().shape[0])))


class Halves(nn.Module):
    """An engine that would read a size for what nobody reads."""

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Any, ...]:
        """[N + 1], [3, N] -> [N + 1], [N + 1], 3 * N"""
        rows = x.clone()
        rows[: x.shape[0] // 2] = 0.0
        return rows, torch.tanh(x), mask.numel()


@pytest.mark.skipif(CAPABILITIES.flavour != "tensorrt_rtx", reason="it builds without a GPU")
def test_no_engine_fails_for_it() -> None:
    """TensorRT-RTX 1.4 fails on a size among the inputs of an engine if no result depends on what reads it."""
    compile = pipeline.default(
        min_block_size=1, torch_executed_ops=["aten.slice_scatter.default"], compute_capabilities=(CAPABILITY,)
    )
    n = Dim("n", min=2, max=8)
    args, shapes = (torch.randn(6), torch.rand(3, 5) > 0.5), ({0: n + 1}, {1: n})
    compiled = compile(Halves().eval(), args=args, dynamic_shapes=shapes)
    assert [*compiled.networks[0].kinds()] == ["ACTIVATION", "IDENTITY"]


@pytest.mark.skipif(CAPABILITIES.flavour != "tensorrt_rtx", reason="it builds without a GPU")
def test_no_engine_is_without_results() -> None:
    outside = ["aten.full.default", "aten.expand.default"]
    compile = pipeline.default(min_block_size=1, torch_executed_ops=outside, compute_capabilities=(CAPABILITY,))
    model = Sized(lambda m, x: (torch.full_like(m.linear(x[:, :1].expand(x.shape[0], 4)), 0.5), x + 1)).eval()
    compiled = compile(model, args=(torch.randn(5, 4),), dynamic_shapes=({0: N},))
    assert all(network.outputs for network in compiled.networks)
