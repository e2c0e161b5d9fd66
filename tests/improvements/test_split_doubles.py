"""split_doubles: what is float64 and ends as float32 is as exact in one engine, however a compiler rounds products."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim

import pipeline
from pipeline import Program
from tests.improvements.programs import decomposed, improved

Tensor = torch.Tensor
aten = torch.ops.aten
EPS = torch.finfo(torch.float32).eps
RATES = 1 / 10000 ** (torch.arange(0, 32, 2, dtype=torch.float64) / 32)


class Calls(nn.Module):
    """A function of tensors as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


class Contracted(torch.fx.Interpreter):
    """A program's graph where some sums round their products not at all, as fused multiply-adds do."""

    chance: random.Random

    def run_node(self, n: torch.fx.Node) -> Any:
        """In float64 if one of the operands is a product, and chance will have it."""
        products = [x for x in n.args if isinstance(x, torch.fx.Node) and x.target is aten.mul.Tensor]
        if n.target not in (aten.add.Tensor, aten.sub.Tensor) or not products or self.chance.random() < 0.5:
            return super().run_node(n)
        one = self.chance.choice(products)
        a, b = self.map_nodes_to_values(one.args, one)
        exact = a.double() * (b.double() if isinstance(b, Tensor) else b)
        operands = [exact if x is one else self.map_nodes_to_values(x, n) for x in n.args]
        wide = [x.double() if isinstance(x, Tensor) else x for x in operands]
        return (wide[0] + wide[1] if n.target is aten.add.Tensor else wide[0] - wide[1]).float()


def contracted(program: Program, chance: random.Random, *inputs: Tensor) -> list[Tensor]:
    """What a program gives if sums of products are rounded once, here and there."""
    values = {port.name: value for port, value in zip(program.inputs, inputs, strict=True)}
    values |= {name: recipe.evaluate(program.parameters) for name, recipe in program.constants.items()}
    run = Contracted(torch.fx.GraphModule(program.graph_module, program.graph), garbage_collect_values=False)
    run.chance = chance
    names = [n.name for n in program.graph.nodes if n.op == "placeholder"]
    return list(run.run(*(values[name] for name in names)))


def flux(positions: Tensor) -> tuple[Tensor, Tensor]:
    """Sines and cosines twice each, as for Flux, in float32 and in bfloat16."""
    angles = torch.outer(positions, RATES.to(positions.device))
    cos, sin = angles.cos().repeat_interleave(2, 1), angles.sin().repeat_interleave(2, 1)
    return cos.float(), sin.to(torch.bfloat16)


def hidream(positions: Tensor) -> Tensor:
    """Matrices of rotations."""
    angles = torch.einsum("n,d->nd", positions, RATES.to(positions.device))
    turned = torch.stack([angles.cos(), -angles.sin(), angles.sin(), angles.cos()], -1)
    return turned.view(-1, 16, 2, 2).float()


def lumina(x: Tensor) -> Tensor:
    """Rows rotated as complex numbers of 128 bits, by angles that are a table of any length."""
    angles = torch.outer(torch.arange(x.shape[0], device=x.device), RATES.to(x.device))
    turned = torch.view_as_complex(x.double().unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2).type_as(x)


def pixart(positions: Tensor) -> Tensor:
    """Sines beside cosines, and the positions themselves, in periods."""
    angles = positions[:, None] / (1 / RATES[:4].to(positions.device))
    return torch.cat([angles.sin(), angles.cos(), positions[:, None]], 1).float()


MODELS = {
    "flux": (flux, lambda x: x.float()),
    "hidream": (hidream, lambda x: x.round().long()),
    "hidream, 32 bits": (hidream, lambda x: x.round().int()),
    "pixart": (pixart, lambda x: x.bfloat16().float()),
    "lumina": (lumina, lambda x: x[:, None] * torch.ones(32)),
    "table": (lumina, lambda x: torch.ones(16, 32)),
}


@cache
def program(name: str) -> Program:
    """The program of a model after the pass, of any number of rows where its tables are no constants."""
    model, example = MODELS[name][0], MODELS[name][1](torch.arange(9.0))
    shapes = None if name == "table" else ({0: Dim("rows", max=64)},)
    return improved(decomposed(Calls(model), example, dynamic_shapes=shapes), "split_doubles")


@given(
    name=st.sampled_from([*MODELS][:4]),
    size=st.sampled_from([1.0, 64.0, 2.0**16, 2.0**22]),
    seed=st.integers(0, 2**32),
)
def test_angles_are_as_exact_as_float64(name: str, size: float, seed: int) -> None:
    model, of = MODELS[name]
    positions = of((torch.rand(64, generator=torch.Generator().manual_seed(seed)) - 0.25) * size)
    found = contracted(program(name), random.Random(seed), positions)
    for ours, wanted in zip(found, torch.utils._pytree.tree_leaves(model(positions)), strict=True):
        assert ours.dtype == wanted.dtype
        eps = EPS if wanted.dtype == torch.float32 else torch.finfo(wanted.dtype).eps
        torch.testing.assert_close(ours.double(), wanted.double(), rtol=eps, atol=EPS)


@given(
    known=st.booleans(),
    size=st.sampled_from([1e-3, 1.0, 1e4]),
    opposite=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_rotations_are_as_exact_as_float64(known: bool, size: float, opposite: bool, seed: int) -> None:
    """By a constant table: a unit in the last place, and 2 ** -29 of what may cancel. By sines of the call: these are
    rounded to float32."""
    a, b = (torch.randn(2, 16, 16, generator=torch.Generator().manual_seed(seed)) * size).unbind(0)
    angles = torch.outer(torch.arange(16), RATES)
    if opposite:
        b = (a * angles.cos() / angles.sin().clamp_min(0.1)).float()
    found = contracted(program("table" if known else "lumina"), random.Random(seed), torch.stack([a, b], -1).flatten(1))
    ours, a, b = found[0].double().unflatten(-1, (-1, 2)), a.double(), b.double()
    parts = (a * angles.cos(), -b * angles.sin()), (a * angles.sin(), b * angles.cos())
    for i, (one, other) in enumerate(parts):
        cancels = 2**-29 * (one.abs() + other.abs()) if known else EPS * (a.abs() + b.abs())
        assert ((ours[..., i] - (one + other)).abs() <= EPS * (one + other).abs() + cancels).all()


def left(model: Callable[..., Any], *inputs: Tensor, **settings: Any) -> list[str]:
    """The operators whose result is float64 after the pass."""
    after = improved(decomposed(Calls(model), *inputs, **settings), "split_doubles")
    calls = [n for n in after.graph.nodes if n.op == "call_function" and isinstance(n.meta.get("val"), Tensor)]
    return [str(n.target) for n in calls if n.meta["val"].dtype == torch.float64]


X, TABLE = torch.randn(4, 16), torch.rand(16, dtype=torch.float64)

STAYS = {
    "an input": (lambda x: (x * RATES).sin().float(), TABLE.expand(4, 16).contiguous()),
    "an output": (lambda x: (x * RATES).sin(), X),
    "a sum with which more is computed": (lambda x: ((x * RATES + x) * RATES).float(), X),
    "the sine of a sum": (lambda x: (x * RATES + x).sin().float(), X),
    "the sine of a product of two tensors": (lambda x: (x.double() * x.double()).sin().float(), X),
    "a function": (lambda x: (x * RATES).exp().float(), X),
    "a cast to integers": (lambda x: (x * RATES).int(), X),
    "an angle of eight dims": (lambda x: (x.view(1, 1, 1, 1, 1, 1, 4, 16) * RATES).sin().float(), X),
}


@pytest.mark.parametrize("name", STAYS)
def test_other_values_stay_float64(name: str) -> None:
    assert left(*STAYS[name])


def test_float64_is_truncated_where_that_is_asked_for() -> None:
    assert left(STAYS["an input"][0], X, truncate_double=True) and not left(STAYS["an input"][0], X)


def moves(x: Tensor, at: Tensor) -> tuple[Tensor, ...]:
    """What moves elements, before and after products, sums, sines; numbers of Python; halves and integers."""
    angles = (x.half().double()[:, None] * RATES.to(x.device)).transpose(0, 1).flip(0)
    table = torch.cat([angles.cos(), -angles.sin()])[2:, at]
    one = TABLE[:1].to(x.device)
    count = torch.arange(x.shape[0], device=x.device).double() / 7 + 0.5
    written = torch.zeros(2, 4, dtype=torch.float64, device=x.device).slice_scatter((x * one)[None, :4], 0, 1, 2)
    return table.float(), count.float(), written.half(), (table * (x[at] * one)).float(), (x.double() * 3).float()


def test_moves_and_numbers_are_one_engine_on_either_device() -> None:
    x, at = torch.rand(8) * 100, torch.tensor([3, 0, 5])
    for device in ("cpu", "cuda"):
        compiled = pipeline.default(device=device, require_full_compilation=True)(Calls(moves), (x, at))
        assert len(compiled.engines) == 1
        for ours, wanted in zip(compiled.module("reference")(x, at), moves(x, at), strict=True):
            torch.testing.assert_close(ours, wanted, rtol=4 * EPS if wanted.dtype == torch.float32 else 1e-3, atol=EPS)
