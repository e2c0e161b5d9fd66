"""autocast: what it casts, what it leaves alone, and that the result is as good as eager's own halves."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._pytree import tree_leaves

import pipeline
from examples.models import small
from pipeline import Program, autocast
from pipeline.improvements.precision import BY_NAME, TABLE, rule_for

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
MODELS = ("bert", "llama", "resnet18", "vit")


class Block(nn.Module):
    """A product, a norm, a softmax, a residual, a buffer that is too large for float16, and one that is mutated."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)
        self.scale = nn.Parameter(torch.rand(8) + 0.5)
        self.register_buffer("bias", torch.tensor([[0.0, -1e9, 0.0, 0.0]]))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[N, 8] -> [N, 4], [N, 8]"""
        self.calls.add_(1)
        y = self.norm(self.inner(x) * self.scale + x.relu())
        return torch.softmax(self.head(y) + self.bias, -1), y * self.calls


@functools.cache
def block() -> tuple[nn.Module, torch.Tensor, Program]:
    """The block, an input, and the program of both."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, x = Block().eval(), torch.randn(3, 8)
    return model, x, pipeline.capture(model, (x,))


def dtypes(program: Program) -> dict[str, torch.dtype]:
    """The dtype of each call's result, by name."""
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    return {n.name: n.meta["val"].dtype for n in calls if isinstance(n.meta.get("val"), torch.Tensor)}


def casts(program: Program) -> list[str]:
    """The names of the casts, in order."""
    return [n.name for n in program.graph.nodes if n.target is aten._to_copy.default]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_rules(dtype: torch.dtype) -> None:
    _, _, program = block()
    made = dtypes(autocast(dtype)(program))
    assert made["linear"] == made["mul"] == made["linear_1"] == dtype
    assert made["layer_norm"] == made["softmax"] == torch.float32
    assert made["add_1"] == torch.float32, "the buffer of -1e9 is added in float32"
    assert made["calls" if "calls" in made else "add"] == torch.float32


def test_the_border_keeps_its_dtypes() -> None:
    _, _, program = block()
    after = autocast()(program)
    assert after.inputs == program.inputs and after.buffers == program.buffers
    values = [n.meta["val"].dtype for n in after.graph.output_node().args[0]]
    assert values == [n.meta["val"].dtype for n in program.graph.output_node().args[0]]
    assert [(o.kind, o.target) for o in after.outputs] == [(o.kind, o.target) for o in program.outputs]


def test_every_fake_value_is_what_the_call_gives() -> None:
    _, x, program = block()
    after = autocast()(program)
    given = {p.name: x for p in after.inputs} | {n: program.parameters[b] for n, b in after.buffers.items()}
    given |= {n: r.evaluate(program.parameters) for n, r in after.constants.items()}

    class Checked(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            result = super().run_node(n)
            if isinstance(fake := n.meta.get("val"), torch.Tensor):
                assert (result.dtype, result.shape) == (fake.dtype, fake.shape), n.name
            return result

    placeholders = [n.name for n in after.graph.nodes if n.op == "placeholder"]
    Checked(torch.fx.GraphModule(after.graph_module, after.graph)).run(*(given[name].clone() for name in placeholders))


@given(exclude=st.sampled_from([("*",), (lambda path: True,), ("aten.*", "torch.ops.*", "_operator.*")]))
def test_nothing_changes_where_all_is_excluded(exclude: Any) -> None:
    _, _, program = block()
    assert str(autocast(exclude=exclude)(program)) == str(program)


@given(
    dtype=st.sampled_from(HALVES),
    exclude=st.lists(
        st.sampled_from([aten.linear, aten.layer_norm.default, "head", "*.inner", "aten.mul*", "no such thing"]),
        unique=True,
    ),
)
def test_idempotent_and_pure(dtype: torch.dtype, exclude: list[Any]) -> None:
    _, _, program = block()
    before, stage = str(program), autocast(dtype, exclude=exclude)
    once = stage(program)
    assert str(program) == before
    assert str(stage(once)) == str(once) == str(stage(program))
    assert stage == autocast(dtype, exclude=exclude) and stage.name == "autocast"


EXCLUDED = [
    (aten.linear, {"linear", "linear_1"}),
    (aten.linear.default, {"linear", "linear_1"}),
    ("aten.linear", {"linear", "linear_1"}),
    ("aten::linear", {"linear", "linear_1"}),
    ("aten.lin*", {"linear", "linear_1"}),
    ("head", {"linear_1"}),
    ("*.head", {"linear_1"}),
    ("h?ad", {"linear_1"}),
    (lambda path: path == "inner", {"linear"}),
]


@pytest.mark.parametrize(("entry", "kept"), EXCLUDED, ids=[str(i) for i in range(len(EXCLUDED))])
def test_exclude(entry: Any, kept: set[str]) -> None:
    _, _, program = block()
    made = dtypes(autocast(exclude=(entry,))(program))
    assert {name for name in ("linear", "linear_1") if made[name] == torch.float32} == kept


def test_a_module_is_excluded_with_what_is_in_it() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear(4, 4)).eval()
    made = dtypes(autocast(exclude=("0",))(pipeline.capture(model, (torch.randn(2, 4),))))
    assert [made[n] for n in ("linear", "linear_1", "linear_2")] == [torch.float32, torch.float32, torch.float16]


def test_wrong_options_are_named() -> None:
    with pytest.raises(ValueError, match=r"torch\.float16 or torch\.bfloat16, got torch\.float32"):
        autocast(torch.float32)
    with pytest.raises(TypeError, match="'half'"):
        autocast("half")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="exclude: 3 is not"):
        autocast(exclude=(3,))
    with pytest.raises(TypeError, match="collection"):
        autocast(exclude="*.head")


def test_a_value_is_cast_once_and_not_back_and_forth() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """The input goes to two products, the product to a norm and a product."""
            y = self.a(x)
            return nn.functional.layer_norm(y, (8,)) + self.b(x) + self.b(y.float())

    after = autocast()(pipeline.capture(Shared().eval(), (torch.randn(2, 8),)))
    assert sorted(casts(after)) == sorted(set(casts(after)))
    assert sum(name.startswith("x_") for name in casts(after)) == 1
    products = [n for n in after.graph.nodes if n.target is aten.linear.default]
    assert products[2].args[0] is products[0]


def test_parameters_that_are_moved_are_cast_before() -> None:
    class Token(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.inner = nn.Parameter(torch.randn(1, 1, 8)), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """[N, S, 8] -> [N, S + 1, 8]"""
            return torch.cat([self.token.expand(x.shape[0], -1, -1), self.inner(x)], 1)

    dynamic = ({0: torch.export.Dim("batch", max=8)},)
    program = pipeline.capture(Token().eval(), (torch.randn(2, 3, 8),), dynamic_shapes=dynamic)
    (recipe,) = [r for r in _decomposed(program).constants.values() if r.parameters == ("token",)]
    assert recipe.dtype == torch.float16


def _decomposed(program: Program, **options: Any) -> Program:
    decomposed: Program = pipeline.default().insert(autocast(**options), before="decompose").until("decompose")(program)
    return decomposed


def test_weights_are_cast_by_recipe() -> None:
    model, _, program = block()
    after = _decomposed(program)
    recipes = {r.parameters: r for r in after.constants.values()}
    weight = recipes["inner.weight",]
    assert weight.dtype == torch.float16
    torch.testing.assert_close(weight.evaluate(program.parameters), model.inner.weight.detach().half(), rtol=0, atol=0)
    assert recipes["norm.weight",].dtype is None and recipes["norm.weight",].steps == ()


def test_refit_is_exact() -> None:
    compile = pipeline.default(min_block_size=1).insert(autocast(), before="decompose")
    torch.manual_seed(1)
    first, second = (nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).eval() for _ in range(2))
    x = torch.randn(3, 4)
    compiled = compile(first, args=(x,))
    again = pipeline.refit_module_weights(compiled, second)
    expected = compile(second, args=(x,)).module(executor="reference")(x)
    torch.testing.assert_close(again.module(executor="reference")(x), expected, rtol=0, atol=0)


def test_what_halves_cannot_hold_is_computed_in_float32() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            """A row that is masked altogether stays finite, as in float32."""
            scores = self.inner(x).masked_fill(mask, torch.finfo(torch.float32).min)
            return torch.softmax(scores, -1)

    x, mask = torch.randn(2, 8), torch.tensor([[True] * 8, [False] * 8])
    model = Masked().eval()
    compiled = pipeline.default(min_block_size=1).insert(autocast(), before="decompose")(model, args=(x, mask))
    torch.testing.assert_close(compiled.module(executor="reference")(x, mask), model(x, mask), rtol=1e-2, atol=1e-3)


def test_explain_says_why() -> None:
    _, _, program = block()
    text = autocast(exclude=("head",)).explain(program)
    assert "linear: aten.linear.default: float16: products" in text
    assert "linear_1: aten.linear.default: float32: exclude matches it" in text
    assert "softmax: aten.softmax.int: float32: norms, softmax" in text
    assert text.splitlines()[-1].endswith("2 in float16, 8 in float32")


def test_no_operator_has_two_rules() -> None:
    names = [name for row in TABLE.values() for name in row.split()]
    assert len(names) == len(set(names)) == len(BY_NAME)
    assert all(hasattr(aten, name) for name in names)


def _error(actual: Any, expected: Any) -> float:
    """The largest error of any output, relative to the output's largest value."""
    floats = [
        (a.double(), e.double())
        for a, e in zip(tree_leaves(actual), tree_leaves(expected), strict=True)
        if isinstance(e, torch.Tensor) and e.is_floating_point()
    ]
    return max(float((a - e).abs().max() / e.abs().max()) for a, e in floats)


@pytest.mark.parametrize("name", MODELS)
def test_models_err_no_more_than_eager_halves(name: str) -> None:
    case, dtype = small(name), HALVES[MODELS.index(name) % 2]
    compile = pipeline.default(require_full_compilation=True).insert(autocast(dtype), before="decompose")
    compiled = compile(case.model, kwargs=case.kwargs, dynamic_shapes=case.dynamic_shapes)
    assert len(compiled.engines) == 1
    weights = [w for w in compiled.networks[0].weights if len(w.shape) > 1 and "float" in str(w.dtype)]
    assert sum(_elements(w) for w in weights if str(w.dtype) == str(dtype).removeprefix("torch.")) > 0.8 * sum(
        map(_elements, weights)
    )
    half = small(name, dtype)
    with torch.no_grad():
        expected, eager = case.model(**case.kwargs), half.model(**half.kwargs)
        actual = compiled.module(executor="reference")(**case.kwargs)
    assert [t.dtype for t in tree_leaves(actual)] == [t.dtype for t in tree_leaves(expected)]
    assert _error(actual, expected) <= 1.5 * _error(eager, expected)


def _elements(weight: Any) -> int:
    return int(torch.Size(weight.shape).numel())


def test_rules_of_calls_without_a_schema() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    assert rule_for(graph.call_function(getattr, (x, "T"))).mode == "said"
