"""masked_rows: rows that a mask leaves nothing have values of 0, or are selected after the next linear layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim

import pipeline
from pipeline.compiled import CompiledModule
from pipeline.converters.attention import promises_key_in_row
from pipeline.improvements.simplify_masks import unmasks_every_row
from pipeline.stages.improve import Improve
from tests.improvements.programs import agree, decomposed, improved, targets

SDPA = "scaled_dot_product_attention.default"
BATCH, HEADS, LENGTH, WIDTH = 2, 3, 5, 12


def attention(x: torch.Tensor, mask: torch.Tensor, width: int = 12) -> torch.Tensor:
    """[B, L, 3 · D] -> [B, 3, L, D]"""
    heads = x.view(x.shape[0], x.shape[1], HEADS, width).transpose(1, 2)
    return nn.functional.scaled_dot_product_attention(heads, heads, heads, mask)


class Model(nn.Module):
    """Attention, and what follows it."""

    def __init__(self, after: Callable[[Any, torch.Tensor], Any], mask: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.after, self.mask = after, mask
        self.linear, self.plain = nn.Linear(HEADS * WIDTH, 8), nn.Linear(HEADS * WIDTH, 8, bias=False)
        self.weight, self.bias = nn.Parameter(torch.randn(HEADS * WIDTH, 8)), nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> Any:
        """[B, L, 36], [B, L] -> [B, L, 8]"""
        return self.after(self, attention(x, self.mask(counts)))


def merged(a: torch.Tensor) -> torch.Tensor:
    return a.transpose(1, 2).reshape(a.shape[0], a.shape[2], HEADS * WIDTH)


def conv1d(m: Any, a: torch.Tensor) -> torch.Tensor:
    """As GPT-2 has it."""
    flat = torch.addmm(m.bias, merged(a).view(-1, HEADS * WIDTH), m.weight)
    return torch.relu(flat.view(a.shape[0], a.shape[2], 8))


def given_out(m: Any, a: torch.Tensor) -> Any:
    y = merged(a)
    return m.linear(y) + 1, y


AFTER: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "flattened": lambda m, a: torch.relu(m.linear(a.transpose(1, 2).flatten(2))),
    "linear": lambda m, a: torch.relu(m.linear(merged(a))),
    "no bias": lambda m, a: m.plain(merged(a)) + 1,
    "addmm": conv1d,
    "matmul": lambda m, a: (merged(a) @ m.weight) * 2,
    "mm": lambda m, a: torch.mm(merged(a).view(-1, HEADS * WIDTH), m.weight).view(a.shape[0], a.shape[2], 8) * 2,
    "copies": lambda m, a: torch.relu(m.linear(merged(a.clone().contiguous()).clone())),
    "two readers": lambda m, a: (lambda y: (y + 1, y * 2))(m.linear(merged(a))),
}


def padding(c: torch.Tensor) -> torch.Tensor:
    return (c > 0)[:, None, None, :].expand(c.shape[0], 1, c.shape[1], c.shape[1])


def future(c: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(c.shape[1])
    return padding(c) & (positions[None, :] <= positions[:, None])


Mask: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
MASKS: dict[str, Mask] = {
    "causal too": future,
    "one batch": lambda c: future(c[:1])[0, 0],
    "three dims": lambda c: future(c[:1])[0],
    "added": lambda c: torch.where(future(c), 0.5, float("-inf")),
}
ONE_ROW: dict[str, Mask] = {
    "padding": padding,
    "not expanded": lambda c: (c > 0)[:, None, None, :],
    "one batch": lambda c: (c[:1] > 0).expand(c.shape[1], c.shape[1]),
    "three dims": lambda c: (c[:1] > 0)[None].expand(1, c.shape[1], c.shape[1]),
    "with positions": lambda c: (torch.arange(c.shape[1])[:, None] >= 0) & (c > 0)[:, None, None, :],
    "positions last": lambda c: padding(c) & (torch.arange(c.shape[1])[:, None] >= 0)[None, None],
    "added": lambda c: torch.where(c > 0, 0.5, float("-inf"))[:, None, None, :],
}
SIZES = {"static": None, "dynamic": ({0: Dim("b", min=2, max=8), 1: Dim("n", min=2, max=32)},) * 2}

X = torch.randn(BATCH, LENGTH, HEADS * WIDTH)
COUNTS = torch.tensor([[0, 0, 1, 0, 1], [0, 0, 0, 0, 0]])
"""Padded on the left, and a text of which nothing counts."""


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    ("after", "mask"), [*((each, "causal too") for each in AFTER), *(("linear", each) for each in MASKS)]
)
def test_rows_are_selected_after_the_linear_layer(after: str, mask: str, sizes: str) -> None:
    program = decomposed(Model(AFTER[after], MASKS[mask]), X, COUNTS, dynamic_shapes=SIZES[sizes])
    found = improved(program, "masked_rows")
    names = targets(found)
    last = names.index("where.self", names.index(SDPA))
    assert any(name in ("linear.default", "addmm.default", "matmul.default", "mm.default") for name in names[:last])
    [node] = [n for n in found.graph.nodes if str(n.target).endswith(SDPA)]
    assert promises_key_in_row(node.args[3])
    agree(program, found, X, COUNTS, rtol=1e-5, atol=1e-6)
    agree(program, found, X, COUNTS.flip(0, 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("mask", ONE_ROW)
def test_batches_without_anything_have_no_values(mask: str, sizes: str) -> None:
    """Whatever comes after the attention."""
    program = decomposed(Model(given_out, ONE_ROW[mask]), X, COUNTS, dynamic_shapes=SIZES[sizes])
    found = improved(program, "masked_rows")
    [node] = [n for n in found.graph.nodes if str(n.target).endswith(SDPA)]
    values, opened = node.args[2:4]
    assert str(values.target) == "aten.where.self"
    assert promises_key_in_row(opened)
    assert opened.meta["val"].shape[-2] == 1
    assert targets(found).index(SDPA) > targets(found).index("where.self")
    agree(program, found, X, COUNTS, rtol=1e-5, atol=1e-6)
    agree(program, found, X, COUNTS.flip(0, 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", ["one", "one in a profile"])
def test_one_query_keeps_its_values(length: str) -> None:
    """Its result is less than they are."""

    class Step(nn.Module):
        def forward(self, query: torch.Tensor, key: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(query, key, key, (counts > 0)[:, None, None])

    key, few = torch.randn(BATCH, HEADS, LENGTH, WIDTH), Dim("few", min=2, max=4)
    profiles = None if length == "one" else [({2: 1}, {}, {}), ({2: few}, {}, {})]
    query = key[:, :, : 1 if profiles is None else 3]
    program = decomposed(Step(), query, key, COUNTS, profiles=profiles)
    found = improved(program, "masked_rows")
    assert "where.self" not in targets(found)
    agree(program, found, query, key, COUNTS, rtol=1e-5, atol=1e-6)


def run(program: Any, **options: Any) -> CompiledModule:
    compiled = pipeline.default(**options)(program)
    return compiled.module(executor="reference")


@pytest.mark.parametrize("mask", [future, padding])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@given(counts=st.lists(st.lists(st.integers(0, 1), min_size=LENGTH, max_size=LENGTH), min_size=2, max_size=2))
def test_compiled_programs_agree_with_eager(dtype: torch.dtype, mask: Mask, counts: list[list[int]]) -> None:
    module, model, x = _compiled(dtype, mask)
    given = torch.tensor(counts)
    expected, actual = model(x, given), module(x, given)
    assert not actual.isnan().any()
    torch.testing.assert_close(actual, expected, rtol=1e-2 if dtype == torch.float16 else 1e-5, atol=2e-3)


_made: dict[Any, Any] = {}


def _compiled(dtype: torch.dtype, mask: Mask) -> Any:
    if (dtype, mask) not in _made:
        torch.manual_seed(0)
        model, x = Model(AFTER["linear"], mask).to(dtype).eval(), X.to(dtype)
        exported = torch.export.export(model, (x, COUNTS))
        _made[dtype, mask] = (run(exported), model, x)
    return _made[dtype, mask]


def select_layers(mask: Mask, *passes: str) -> int:
    """How many selections the network of a model has."""
    model = Model(AFTER["linear"], mask).half().eval()
    compile = pipeline.default().replace("improve", Improve(passes=passes)).until("convert")
    [network] = compile(torch.export.export(model, (X.half(), COUNTS))).networks
    return sum(layer.kind == "SELECT" for layer in network.layers)


@pytest.mark.parametrize("mask", [future, padding])
def test_the_converter_selects_no_more(mask: Mask) -> None:
    """One selection makes the mask numbers, one stands after the attention, or the linear layer, or at the values."""
    assert select_layers(mask) == select_layers(mask, "masked_rows") == 2


def per_head(c: torch.Tensor) -> torch.Tensor:
    return padding(c).expand(-1, HEADS, -1, -1) & (torch.arange(HEADS) > 0)[None, :, None, None]


OTHERS: dict[str, tuple[Any, Any]] = {
    "another mask for each head": (AFTER["linear"], per_head),
    "somebody else reads the attention": (given_out, future),
    "nobody reads the linear layer": (lambda m, a: m.linear(merged(a)), future),
    "no linear layer": (lambda m, a: torch.relu(merged(a)), future),
    "heads in front": (lambda m, a: m.linear(a.reshape(a.shape[0], a.shape[2], -1)) + 1, future),
    "another order": (lambda m, a: m.linear(a.permute(0, 3, 1, 2).reshape(a.shape[0], a.shape[2], -1)) + 1, future),
    "known": (AFTER["linear"], lambda c: torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(-1)),
}


@pytest.mark.parametrize(("after", "mask"), OTHERS.values(), ids=OTHERS)
def test_others_stay(after: Any, mask: Any) -> None:
    program = decomposed(Model(after, mask), X, COUNTS)
    assert targets(improved(program, "masked_rows")) == targets(program)


OPEN: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool]] = {
    "opened": (lambda m: m | ~m.any(-1, keepdim=True), True),
    "the other way round": (lambda m: (~m.any(3, keepdim=True)).logical_or(m), True),
    "expanded": (lambda m: (m | ~m.any(-1, keepdim=True)).expand(-1, HEADS, -1, -1), True),
    "by columns": (lambda m: m | ~m.any(-2, keepdim=True), False),
    "with another": (lambda m: m | ~m.logical_not().any(-1, keepdim=True), False),
    "not negated": (lambda m: m | m.any(-1, keepdim=True), False),
    "and": (lambda m: m & ~m.any(-1, keepdim=True), False),
    "any": (lambda m: m, False),
}


@pytest.mark.parametrize(("mask", "known"), OPEN.values(), ids=OPEN)
def test_masks_that_leave_something_in_every_row(mask: Any, known: bool) -> None:
    program = decomposed(Model(AFTER["linear"], lambda c: mask(padding(c))), X, COUNTS)
    [node] = [n for n in program.graph.nodes if str(n.target).endswith(SDPA)]
    assert unmasks_every_row(node.args[3]) == known
    found = improved(program, "masked_rows")
    assert (targets(found) == targets(program)) == known
    agree(program, found, X, COUNTS, rtol=1e-5, atol=1e-6)
