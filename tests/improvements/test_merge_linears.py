"""merge_linears, merge_head_views: linear layers of one tensor become one, its heads slices of one view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from pipeline.stages.improve import Improve
from tests.improvements.programs import agree, decomposed, improved, targets

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


class Branches(nn.Module):
    """Linear layers of given widths that read one tensor."""

    def __init__(self, widths: Sequence[int], bias: bool = True, inner: int = 8) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(inner, width, bias) for width in widths)

    def forward(self, x: torch.Tensor) -> Any:
        """[..., inner] -> [..., width] for each width"""
        return [branch(x).exp() for branch in self.branches]


class Heads(nn.Module):
    """Queries, keys and values as models make them, for an attention or a product."""

    def __init__(self, cut: Callable[[torch.Tensor], Any], width: int = 24) -> None:
        super().__init__()
        self.qkv, self.cut = nn.Linear(8, width), cut

    def forward(self, x: torch.Tensor) -> Any:
        """[N, S, 8] -> [N, heads, S, 4] for each"""
        return [part.transpose(1, 2).exp() for part in self.cut(self.qkv(x))]


class Views(Heads):
    """Heads that are returned as they are."""

    def forward(self, x: torch.Tensor) -> Any:
        """[N, S, 8] -> [N, S, heads, 4] for each"""
        return self.cut(self.qkv(x))


def seen(parts: Sequence[torch.Tensor], width: int = 4) -> list[torch.Tensor]:
    return [part.reshape(*part.shape[:-1], -1, width) for part in parts]


ROWS = ({0: Dim("batch", max=8), 1: Dim("rows", max=16)},)


@pytest.mark.parametrize("dynamic", [None, ROWS], ids=["static", "dynamic"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [(8, 8, 8), (8, 2, 3)], ids=str)
def test_layers_of_one_tensor_become_one(widths: tuple[int, ...], bias: bool, dynamic: Any) -> None:
    program = decomposed(Branches(widths, bias), X, dynamic_shapes=dynamic)
    after = improved(program, "merge_linears")
    assert targets(after).count("linear.default") == 1 and targets(after).count("slice.Tensor") == len(widths)
    made = [recipe for recipe in after.constants.values() if len(recipe.parameters) == len(widths)]
    assert len(made) == 1 + bias
    agree(program, after, X, **CLOSE)


class Twice(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> Any:
        """[..., 8] -> [..., 8], twice"""
        return self.a(x), self.b(x)


class Apart(nn.Module):
    """Layers that read different tensors, or of which one has no bias."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8, bias)

    def forward(self, x: torch.Tensor) -> Any:
        """[..., 8] -> [..., 8], twice"""
        return self.a(x), self.b(x * 2 if self.b.bias is not None else x)


class Experts(nn.Module):
    """Modules that each have layers that read one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(Branches((8, 8)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> Any:
        """[..., 8] -> [..., 8], twice for each"""
        return [expert(x) for expert in self.experts]


def test_each_module_has_a_product_of_its_own() -> None:
    program = decomposed(Experts(), X)
    after = improved(program, "merge_linears")
    assert targets(program).count("linear.default") == 6 and targets(after).count("linear.default") == 3
    agree(program, after, X, **CLOSE)


@pytest.mark.parametrize("model", [Twice(), Apart(True), Apart(False)], ids=["tied", "two tensors", "one bias"])
def test_others_stay(model: nn.Module) -> None:
    program = decomposed(model, X)
    assert str(improved(program, "merge_linears")) == str(program)


@pytest.mark.parametrize("kept", ["aten.slice.Tensor", "aten.unflatten.int"])
def test_nothing_is_introduced_that_no_converter_takes(kept: str) -> None:
    """Else an engine would be cut for it."""
    program = decomposed(Branches((8, 8)), X, torch_executed_ops={"aten.slice.Tensor"})
    assert str(improved(program, "merge_linears")) == str(program)
    program = decomposed(Heads(CUTS["split"]), X, torch_executed_ops={kept})
    assert str(improved(program, "merge_head_views")) == str(program)


def test_what_is_kept_in_pytorch_stays_there() -> None:
    program = decomposed(Branches((8, 8, 8)), X, torch_executed_ops={lambda path: path == "branches.1"})
    after = improved(program, "merge_linears")
    assert targets(after).count("linear.default") == 2
    agree(program, after, X, **CLOSE)


class Outputs(Branches):
    """Layers whose results are returned as they are."""

    def forward(self, x: torch.Tensor) -> Any:
        """[..., inner] -> [..., width] for each width"""
        return [branch(x) for branch in self.branches]


def test_an_output_stays_a_tensor_of_its_own() -> None:
    program = decomposed(Outputs((8, 3)), X)
    assert str(improved(program, "merge_linears")) == str(program)
    program = decomposed(Views(CUTS["split"]), X)
    assert str(improved(program, "merge_head_views")) == str(program)


CUTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "split": lambda y: seen(y.split(8, -1)),
    "chunk": lambda y: seen(y.chunk(3, dim=2)),
    "few keys": lambda y: seen(y.split([16, 4, 4], -1)),
    "slices": lambda y: seen([y[..., :8], y[..., 8:16], y[..., 16:]]),
    "out of order": lambda y: seen([y[..., 16:], y[..., :8]]),
    "unflattened": lambda y: [part.unflatten(-1, (2, 4)) for part in y.split(8, -1)],
    "of a size to be found": lambda y: [part.unflatten(2, (-1, 4)) for part in y.split(8, -1)],
    "-1 for the batch": lambda y: [part.reshape(-1, 5, 2, 4) for part in y.split(8, -1)],
}
KEPT: dict[str, Callable[[torch.Tensor], Any]] = {
    "two widths": lambda y: [*seen([y[..., :8]], 4), *seen([y[..., 8:16]], 2)],
    "begins inside a head": lambda y: seen([y[..., :8], y[..., 10:18]]),
    "a step": lambda y: seen([y[..., :16:2], y[..., 8:24:2]]),
    "no heads": lambda y: [part.exp() for part in y.split(8, -1)],
    "another dim": lambda y: [part.reshape(*part.shape[:-1], 2, 12) for part in y.split([2, 3], 1)],
    "another order": lambda y: [part.reshape(part.shape[0], 2, 5, 4) for part in y.split(8, -1)],
    "one head dim and more": lambda y: [part.reshape(-1, 2, 4) for part in y.split(8, -1)],
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CUTS)
def test_heads_are_cut_from_one_view(name: str, dynamic: bool) -> None:
    shapes = ({0: Dim("batch", max=8)},) if dynamic else None
    program = decomposed(Heads(CUTS[name]), X, dynamic_shapes=shapes)
    after = improved(program, "merge_head_views")
    found = targets(after)
    assert [t for t in found if t in ("view.default", "reshape.default", "unflatten.int")] == ["unflatten.int"]
    assert not any(t.startswith("split") for t in found)
    agree(program, after, X, **CLOSE)


@pytest.mark.parametrize("name", KEPT)
def test_what_is_not_heads_stays(name: str) -> None:
    program = decomposed(Heads(KEPT[name]), X)
    assert str(improved(program, "merge_head_views")) == str(program)


class Attention(nn.Module):
    """Self-attention with a layer each for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, S, 64] -> [N, S, 64]"""
        q, k, v = (f(x).view(*x.shape[:-1], 4, 16).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return self.o(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def test_an_attention_has_two_products() -> None:
    model, x = Attention().eval(), torch.randn(2, 5, 64)
    compile = pipeline.default().until("convert")
    alone = compile.replace("improve", Improve(passes=()))
    counts = [each(model, args=(x,)).networks[0].kinds()["MATRIX_MULTIPLY"] for each in (alone, compile)]
    assert counts == [6, 4]  # two are the attention's own, in float32


def test_weights_that_were_put_together_are_refitted() -> None:
    (a, b), x = (Attention().eval() for _ in range(2)), torch.randn(2, 5, 64)
    compiled = pipeline.default()(a, args=(x,))
    other = pipeline.refit_module_weights(compiled, b)
    again = pipeline.refit_module_weights(other, a)
    with torch.no_grad():
        for made, model in ((compiled, a), (other, b), (again, a)):
            torch.testing.assert_close(made.module("reference")(x), model(x), **CLOSE)
        assert torch.equal(again.module("reference")(x), compiled.module("reference")(x))
    merged = [recipe for recipe in compiled.refit_map.values() if len(recipe.parameters) == 3]
    assert len(merged) == 2  # the weights of queries, keys and values, and their biases
