"""norms_into_linears and sums_into_linears: what decoders spell becomes one operator with the linear layer; near misses
stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline.converters import DYNAMO_CONVERTERS
from pipeline.stages.improve import Improve
from tests.improvements.programs import agree, decomposed, improved, targets
from tests.stages.one_row import Layer

WIDTH, COLUMNS = 16, 6
NORMED, ONTO = "pipeline.normed_linear.default", "pipeline.linear_onto.default"
Spelling = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def root(x: torch.Tensor) -> torch.Tensor:
    return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


def llama(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return gain * (wide * root(wide)).to(x.dtype)


def other_orders(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (torch.rsqrt(1e-5 + (wide * wide).mean([2], keepdim=True)) * wide).to(x.dtype) * gain


def t5(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return gain * (x * root(x.to(torch.float32))).to(x.dtype)


def gemma(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * root(wide) * (1.0 + gain.float())).type_as(x)


def torchs(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return nn.functional.rms_norm(x, [WIDTH], gain, 1e-5)


def mean_of_another_dim(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return gain * (wide * torch.rsqrt(wide.pow(2).mean(1, keepdim=True) + 1e-5)).to(x.dtype)


def cubes(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return gain * (wide * torch.rsqrt(wide.pow(3).mean(-1, keepdim=True).abs() + 1e-5)).to(x.dtype)


def of_another(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return gain * (wide.sin() * root(wide)).to(x.dtype)


def in_halves(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return gain * (x * root(x))


def one_gain(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return gain[:1] * (wide * root(wide)).to(x.dtype)


class Normed(nn.Module):
    """A norm, and a linear layer that reads it."""

    def __init__(self, norm: Spelling, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.gain = norm, nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.linear = nn.Linear(WIDTH, COLUMNS, bias=bias)

    def forward(self, x: torch.Tensor) -> Any:
        """[batch, rows, WIDTH] -> [batch, rows, COLUMNS]"""
        return self.linear(self.norm(x, self.gain))


class ReadTwice(Normed):
    """The norm is an output, too."""

    def forward(self, x: torch.Tensor) -> Any:
        """[batch, rows, WIDTH] -> [batch, rows, COLUMNS] and the norm"""
        normed = self.norm(x, self.gain)
        return self.linear(normed), normed


class Onto(nn.Module):
    """A linear layer that is added to something."""

    def __init__(self, add: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.add, self.linear = add, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        """[batch, rows, WIDTH] -> the same"""
        return self.add(x, self.linear(x.sin()))


def row(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(2, 3, WIDTH, generator=torch.Generator().manual_seed(0)).to(dtype)


HALVES = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("norm", [llama, other_orders, t5, gemma, torchs], ids=lambda f: f.__name__)
def test_a_norm_is_part_of_the_linear_layer(norm: Spelling, dtype: torch.dtype, bias: bool) -> None:
    x = row(dtype)
    program = decomposed(Normed(norm, bias).to(dtype), x)
    after = improved(program, "norms_into_linears")
    assert targets(after) == [NORMED]
    bound = 4 * torch.finfo(dtype).eps
    agree(program, after, x, rtol=bound, atol=bound)


@pytest.mark.parametrize(
    "norm", [mean_of_another_dim, cubes, of_another, in_halves, one_gain], ids=lambda f: f.__name__
)
def test_another_norm_stays(norm: Spelling) -> None:
    program = decomposed(Normed(norm).half(), row(torch.float16))
    assert str(improved(program, "norms_into_linears")) == str(program)


def test_a_norm_in_float32_stays() -> None:
    program = decomposed(Normed(torchs), row(torch.float32))
    assert str(improved(program, "norms_into_linears")) == str(program)


def test_a_norm_that_others_read_stays() -> None:
    program = decomposed(ReadTwice(llama).half(), row(torch.float16))
    assert str(improved(program, "norms_into_linears")) == str(program)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("add", [lambda x, y: x + y, lambda x, y: y + x, lambda x, y: x + y.clone()])
def test_what_a_linear_layer_is_added_to_is_part_of_it(add: Any, dtype: torch.dtype) -> None:
    x = row(dtype)
    program = decomposed(Onto(add).to(dtype), x)
    after = improved(program, "sums_into_linears")
    assert targets(after) == ["sin.default", "unsqueeze.default", ONTO]
    agree(program, after, x)


class Sized(nn.Module):
    """A linear layer and the size of a dim, which varies."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.gain = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        """[batch, rows, WIDTH] -> several of the same"""
        wide, rows = x.float(), x.shape[1]
        counted = self.linear(rows * (wide * root(wide)).to(x.dtype))
        return self.linear(x) + rows, counted, self.linear(self.gain * (rows * root(wide)).to(x.dtype)), x + counted


def test_a_size_is_no_tensor() -> None:
    x, varies = row(torch.float16), {"x": {1: torch.export.Dim("rows", min=2, max=8)}}
    program = decomposed(Sized().half(), x, dynamic_shapes=varies)
    after = improved(program, "norms_into_linears", "sums_into_linears")
    assert targets(after).count(NORMED) == 0 and targets(after).count(ONTO) == 0
    agree(program, after, x)


def test_rows_that_vary_and_results_that_are_returned() -> None:
    x, varies = row(torch.bfloat16), {"x": {1: torch.export.Dim("rows", min=1, max=8)}}
    program = decomposed(Layer(WIDTH, 2 * WIDTH).to(torch.bfloat16), x, dynamic_shapes=varies)
    after = improved(program, "norms_into_linears", "sums_into_linears")
    assert (targets(after).count(NORMED), targets(after).count(ONTO)) == (2, 2)
    names = [[node.name for node in each.graph.output_node().args[0]] for each in (program, after)]
    assert names[0] == names[1]
    agree(program, after, x, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("kept", ["aten.add.Tensor", "aten.unsqueeze.default", "aten.clone.default"])
def test_a_sum_of_what_stays_in_pytorch_stays(kept: str) -> None:
    model = Onto(lambda x, y: x + y.clone()).half()
    program = decomposed(model, row(torch.float16), torch_executed_ops={f"torch.ops.{kept}"})
    assert str(improved(program, "sums_into_linears")) == str(program)


OTHERS = {
    "times": lambda x, y: x.add(y, alpha=2),
    "read twice": lambda x, y: (x + y, y),
    "of another shape": lambda x, y: x[:1] + y,
    "of another dtype": lambda x, y: x.float() + y,
    "a number": lambda x, y: y + 1,
    "itself": lambda x, y: y + y,
    "a constant": lambda x, y: y + torch.ones(2, 3, WIDTH, dtype=x.dtype),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_sums_stay(name: str) -> None:
    program = decomposed(Onto(OTHERS[name]).half(), row(torch.float16))
    assert str(improved(program, "sums_into_linears")) == str(program)


@pytest.mark.parametrize("kept", ["aten.linear.default", "aten.mean.dim", "aten.rsqrt.default"])
def test_what_stays_in_pytorch_is_not_made_part_of_it(kept: str) -> None:
    program = decomposed(Normed(llama).half(), row(torch.float16), torch_executed_ops={f"torch.ops.{kept}"})
    assert str(improved(program, "norms_into_linears")) == str(program)


def test_what_somebody_converts_stays() -> None:
    @pipeline.dynamo_tensorrt_converter(torch.ops.aten.linear.default, priority=pipeline.ConverterPriority.HIGH)
    def mine(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        raise AssertionError("it is not built here")

    program = decomposed(Normed(llama).half(), row(torch.float16))
    registry = DYNAMO_CONVERTERS.register(mine)
    for name in ("norms_into_linears", "sums_into_linears"):
        assert str(Improve(registry, passes=(name,))(program)) == str(program)
