"""push_down_slices: rows of which few are read are computed alone; what anything else reads is computed whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim

import pipeline
from examples.models import small
from pipeline import Program
from pipeline.stages.improve import Improve
from tests.improvements.programs import agree, decomposed, improved

LENGTH, WIDTH, HEADS = 7, 12, 3
X = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))
PRODUCTS = tuple(getattr(torch.ops.aten, name).default for name in ("addmm", "mm", "matmul", "bmm"))
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
SIZES = ({0: Dim("batch", max=8), 1: Dim("length", min=2, max=16)},)


class Layer(nn.Module):
    """A transformer's layer, and what reads its rows."""

    def __init__(self, read: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.read = read
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.first, self.second, self.last = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> Any:
        """[B, L, 12] -> what ``read`` makes of [B, L, 12]"""
        y = self.first(x)
        q, k, v = (p(y).view(*y.shape[:2], HEADS, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.o(attended.transpose(1, 2).reshape(*x.shape))
        x = x + self.down(nn.functional.gelu(self.up(self.second(x))))
        return self.read(self, self.last(x))


READS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "first": lambda m, x: m.head(x[:, 0]),
    "last": lambda m, x: m.head(x[:, -1]),
    "second": lambda m, x: m.head(x[:, 1]),
    "first two": lambda m, x: m.head(x[:, :2]) if x.shape[1] > 3 else None,
    "last of all": lambda m, x: m.head(x[:, -1:]),
    "twice the same": lambda m, x: (m.head(x[:, 0]), torch.tanh(x[:, 0])),
    "after the head": lambda m, x: m.head(x)[:, 0],
    "of both dims": lambda m, x: m.head(x)[:, 0, 2:3],
}


def rows(program: Program) -> dict[str, set[Any]]:
    """The sizes of dim 1 of what linear layers read, by the name of their weight."""
    linear = [n for n in program.graph.nodes if n.target is torch.ops.aten.linear.default]
    return {n.args[1].name.split("_")[-2]: n.args[0].meta["val"].shape[1] for n in linear}


FEW, ALL = {"o", "up", "down"}, {"q", "k", "v"}


@pytest.mark.parametrize("dynamic", [None, SIZES], ids=["static", "dynamic"])
@pytest.mark.parametrize("read", [r for r in READS if r != "first two"])
def test_a_layer_is_computed_for_what_is_read_of_it(read: str, dynamic: Any) -> None:
    before = decomposed(Layer(READS[read]), X, dynamic_shapes=dynamic)
    after = improved(before, "push_down_slices")
    agree(before, after, X, **CLOSE)
    found = rows(after)
    assert {name for name, size in found.items() if size == 1} >= FEW
    assert not {name for name, size in found.items() if size == 1} & ALL


def test_several_rows_are_selected_where_they_are_few() -> None:
    before = decomposed(Layer(READS["first two"]), X)
    after = improved(before, "push_down_slices")
    agree(before, after, X, **CLOSE)
    assert {name for name, size in rows(after).items() if size == 2} == {*FEW, "head"}


WHOLE: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "two rows": lambda m, x: (m.head(x[:, 0]), m.head(x[:, 1])),
    "its mean": lambda m, x: (m.head(x[:, 0]), x.mean(1)),
    "an output": lambda m, x: (m.head(x[:, 0]), x),
    "most of it": lambda m, x: m.head(x[:, :5]),
    "every second": lambda m, x: m.head(x[:, ::2]),
    "features": lambda m, x: x[:, :, 0],
    "an index that varies": lambda m, x: m.head(x[torch.arange(2), x[:, :, 0].argmax(1)]),
}


@pytest.mark.parametrize("read", WHOLE)
def test_what_else_is_read_is_computed(read: str) -> None:
    before = decomposed(Layer(WHOLE[read]), X)
    assert str(improved(before, "push_down_slices")) == str(Improve(passes=())(before))


def test_a_row_that_data_chooses() -> None:
    """The number of the row is read from a tensor: it is a node."""
    layer = Layer(lambda m, x: m.head(x[:, x[0, 0, 0].abs().long() % 7]))
    before = decomposed(layer, X)
    (select,) = (n for n in before.graph.nodes if n.target is torch.ops.aten.select.int and n.args[1] == 1)
    assert isinstance(select.args[2], torch.fx.Node)
    agree(before, improved(before, "push_down_slices"), X, **CLOSE)


def test_a_selection_alone_stays_where_it_is() -> None:
    class Elementwise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x * 2)[:, 0]

    before = decomposed(Elementwise(), X)
    assert str(improved(before, "push_down_slices")) == str(Improve(passes=())(before))


def test_products_of_several_kinds() -> None:
    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Parameter(torch.randn(WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """[B, L, 12] -> [B, 12]"""
            turned = torch.addmm(self.bias, x.reshape(-1, WIDTH), self.weight).view(x.shape) @ self.weight
            scores = (turned @ turned.transpose(1, 2)).softmax(-1)
            return (torch.bmm(scores, turned) @ self.weight)[:, -2]

    before = decomposed(Products(), X)
    after = improved(before, "push_down_slices")
    agree(before, after, X, **CLOSE)
    sizes = [n.meta["val"].shape[-2] for n in after.graph.nodes if n.target in PRODUCTS]
    assert sizes == [2 * LENGTH, LENGTH, LENGTH, LENGTH, 1]


@pytest.mark.parametrize("name", ["vit", "bert", "gpt2", "llama", "whisper", "t5"])
def test_models_give_what_they_gave(name: str) -> None:
    """One token of each of a model's outputs."""

    class One(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, **inputs: torch.Tensor) -> Any:
            found = [v for v in torch.utils._pytree.tree_leaves(self.model(**inputs)) if v.dim() > 2]
            return [value[:, -1] for value in found] or self.model(**inputs)

    case = small(name)
    result = pipeline.default()(One(case.model).eval(), kwargs=case.kwargs)
    whole = pipeline.default().replace("improve", Improve().without("push_down_slices"))
    expected = whole(One(case.model).eval(), kwargs=case.kwargs).module("reference")(**case.kwargs)
    torch.testing.assert_close(result.module("reference")(**case.kwargs), expected, rtol=2e-4, atol=2e-4)


STEPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": nn.functional.gelu,
    "turned": lambda x: x.transpose(0, 1) * 2 if x.dim() == 2 else x.transpose(-1, -2).tanh().transpose(-1, -2),
    "seen apart": lambda x: x.view(*x.shape[:-1], 2, -1).flip(-1).reshape(x.shape),
    "flat": lambda x: (x.reshape(-1, x.shape[-1]) + 1).view(x.shape),
    "heads": lambda x: x.unflatten(-1, (3, -1)).flip(-1).flatten(-2),
    "flattened": lambda x: (x.flatten(0, 1) + 1).unflatten(0, (-1, LENGTH)),
    "normed": lambda x: nn.functional.layer_norm(x, x.shape[-1:]),
    "summed up": lambda x: x + x.cumsum(1),
    "all rows": lambda x: x.softmax(1) * x,
    "a row for all": lambda x: x - x[:, 2:3],
    "a vector": lambda x: x + torch.arange(x.shape[-1]),
    "their mean": lambda x: x / (x.abs().mean(1, keepdim=True) + 1),
    "products": lambda x: x @ x[0].mT @ x[0] / 10,
    "of both": lambda x: x * x + x.sin(),
    "chosen": lambda x: torch.where(x > 0, x, x.roll(1, 1)),
}


class Chain(nn.Module):
    def __init__(self, steps: list[str], read: tuple[Any, ...]) -> None:
        super().__init__()
        self.steps, self.read = steps, read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = STEPS[step](x)
        return nn.functional.layer_norm(x, x.shape[-1:])[self.read]


@given(
    st.lists(st.sampled_from(sorted(STEPS)), max_size=6),
    st.tuples(
        st.sampled_from([slice(None), slice(1, None)]),
        st.one_of(st.integers(-LENGTH, LENGTH - 1), st.builds(slice, st.integers(-3, 3), st.integers(-3, 7))),
    ),
    st.integers(1, 2),
)
@example(["flattened"], (slice(None), 0), 1)
@example(["a vector"], (slice(1, None), slice(None)), 1)  # no row of a dim of size 1
def test_chains(steps: list[str], read: tuple[Any, ...], batch: int) -> None:
    x = X[:batch].double()  # steps may add up what rounds
    before = decomposed(Chain(steps, read), x)
    agree(before, improved(before, "push_down_slices"), x, rtol=1e-9, atol=1e-9)
