"""What a user registers is reached: from a composite, over a decomposition, over a pass; what is not is named."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import pipeline
from pipeline import ConverterPriority, dynamo_tensorrt_converter
from pipeline.improvements import Rewriting, improvement
from pipeline.program import is_operator
from pipeline.stages import Improve, unbuilt

aten = torch.ops.aten
HIGH = ConverterPriority.HIGH


class Calls(nn.Module):
    """A function as a model, with parameters that it may read."""

    def __init__(self, function: Callable[..., Any], *parameters: torch.Tensor) -> None:
        super().__init__()
        self.function, self.own = function, nn.ParameterList(parameters)

    def forward(self, *args: torch.Tensor) -> Any:
        """What the function gives."""
        return self.function(*args, *self.own)


def never(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
    """A converter that is looked up, and not called."""
    raise AssertionError("validate only looks up")


def registry(*targets: Any, function: Callable[..., Any] = never, **options: Any) -> pipeline.ConverterRegistry:
    """Ours, and a converter of the targets."""

    def mine(*args: Any) -> Any:
        return function(*args)

    for target in targets:
        dynamo_tensorrt_converter(target, **{"priority": HIGH, "supports_dynamic_shapes": True, **options})(mine)
    return pipeline.DYNAMO_CONVERTERS.register(mine)


def mine_of(validated: pipeline.Validated) -> Iterator[str]:
    """The operators that a user's converter takes."""
    for verdict in validated.verdicts.values():
        if verdict.choice is not None and verdict.choice.support.name.endswith(".mine"):
            yield verdict.target


X, IMAGE, ROWS = torch.randn(4, 8), torch.randn(2, 4, 8, 8), torch.randn(2, 5, 8)
LINEAR, NORM = nn.Linear(8, 8).eval(), nn.BatchNorm2d(4).eval()

COMPOSITES: dict[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    "_softmax.default": (lambda x: F.softmax(x, -1), (X,)),
    "_log_softmax.default": (lambda x: F.log_softmax(x, -1), (X,)),
    "addmm.default": (LINEAR, (X,)),
    "mm.default": (nn.Linear(8, 8, bias=False), (X,)),
    "bmm.default": (lambda x: x @ x.mT, (ROWS,)),
    "native_layer_norm.default": (nn.LayerNorm(8), (X,)),
    "native_group_norm.default": (nn.GroupNorm(2, 4), (IMAGE,)),
    "_native_batch_norm_legit_no_training.default": (NORM, (IMAGE,)),
    "max_pool2d_with_indices.default": (lambda x: F.max_pool2d(x, 2), (IMAGE,)),
    "max_pool3d_with_indices.default": (lambda x: F.max_pool3d(x[None], 2), (IMAGE,)),
    "avg_pool1d.default": (nn.AvgPool1d(2), (ROWS,)),
    "convolution.default": (nn.Conv2d(4, 4, 3), (IMAGE,)),
    "permute.default": (lambda x: x.transpose(0, 1) + 1, (X,)),
    "view.default": (lambda x: x.flatten() + 1, (X,)),
    "hypot.default": (lambda x: torch.hypot(x, x + 1), (X,)),
    "_adaptive_avg_pool2d.default": (lambda x: F.adaptive_avg_pool2d(x, 3), (IMAGE,)),
    "constant_pad_nd.default": (lambda x: F.pad(x, (1, 2)), (X,)),
    "embedding.default": (lambda x: F.embedding(x, LINEAR.weight), (torch.arange(4),)),
    "split_with_sizes.default": (lambda x: x.chunk(3, 1)[0] + 1, (X,)),
    "slice.Tensor": (lambda x: x.narrow(1, 2, 3) + 1, (X,)),
    "squeeze.dim": (lambda x: x.unbind(0)[1] + 1, (X,)),
    "unsqueeze.default": (lambda x: torch.atleast_2d(x[0]) + 1, (X,)),
    "expand.default": (lambda x: x[:1].expand_as(x) + 1, (X,)),
    "where.self": (lambda x: x.masked_fill(x > 0, 2.0), (X,)),
    "gather.default": (lambda x: torch.take_along_dim(x, x.argmax(1, True), 1), (X,)),
    "cat.default": (lambda x: torch.vstack((x, x)), (X,)),
    "sort.default": (lambda x: torch.argsort(x, 1), (X,)),
    "sum.dim_IntList": (lambda x: x.sum() + 1, (X,)),
    "mean.dim": (lambda x: F.adaptive_avg_pool2d(x, 1), (IMAGE,)),
    "var.correction": (lambda x: x.std(1), (X,)),
    "amax.default": (lambda x: torch.logsumexp(x, 1), (X,)),
    "pow.Tensor_Scalar": (lambda x: torch.square(x), (X,)),
    "clamp.default": (lambda x: torch.clip(x, 0, 1), (X,)),
    "sigmoid.default": (lambda x: F.silu(x), (X,)),
    "leaky_relu.default": (lambda x: F.leaky_relu(x, 0.2), (X,)),
    "elu.default": (lambda x: F.selu(x), (X,)),
    "mul.Tensor": (lambda x: F.hardswish(x), (X,)),
    "_to_copy.default": (lambda x: x.type_as(torch.zeros(1, dtype=torch.float16)), (X,)),
    "bitwise_and.Tensor": (lambda x: (x > 0).__and__(x < 1), (X,)),
    "maximum.default": (lambda x: torch.max(x, x + 1), (X,)),
}


def operator_of(name: str) -> Any:
    """The operator of a name."""
    operator, _, overload = name.partition(".")
    return getattr(getattr(aten, operator), overload)


def model_of(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A model that contains an operator, and its inputs."""
    model, args = COMPOSITES[name]
    return (model if isinstance(model, nn.Module) else Calls(model)).eval(), args


@pytest.mark.parametrize("name", COMPOSITES)
def test_a_high_converter_is_reached_from_a_composite(name: str) -> None:
    validated = pipeline.default(registry=registry(operator_of(name))).until("validate")(*model_of(name))
    assert f"aten.{name}" in set(mine_of(validated))


def counted(target: Any) -> tuple[pipeline.ConverterRegistry, list[str]]:
    """A registry with a HIGH converter of the target, which does what ours does, and the names of what it converted."""
    ours, names = pipeline.DYNAMO_CONVERTERS[target][0], []

    def convert(ctx: Any, op: Any, args: Any, kwargs: Any, name: str) -> Any:
        names.append(name)
        return ours(ctx, op, args, kwargs, name)

    return registry(target, function=convert), names


@pytest.mark.parametrize("name", [name for name in COMPOSITES if operator_of(name) in pipeline.DYNAMO_CONVERTERS])
def test_what_it_makes_is_right(name: str) -> None:
    model, args = model_of(name)
    with_mine, names = counted(operator_of(name))
    compiled = pipeline.default(registry=with_mine).replace("build", unbuilt)(model, args)
    assert names
    assert not compiled.coverage.fallback
    torch.testing.assert_close(compiled.module(executor="reference")(*args), model(*args), rtol=1e-4, atol=1e-5)


class Block(nn.Module):
    """Queries, keys and values of one tensor, GPT-2's activation, patches, a batch norm: something for every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.norm = nn.Conv2d(4, 16, 8, stride=8), nn.BatchNorm2d(16)
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        """[B, S, 16] -> [B, 4, S, 4]"""
        return x.unflatten(-1, (4, 4)).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, 4, 16, 16] -> [B, 4, 16]"""
        x = self.norm(self.patch(x)).flatten(2).mT
        q, k, v = (self.heads(each(x)) for each in (self.q, self.k, self.v))
        weights = torch.softmax(
            q @ k.mT * 0.5 + torch.zeros(4, dtype=x.dtype).masked_fill(torch.arange(4) > 5, -1e4), -1
        )
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        x = 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))
        return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]).squeeze(1)


BLOCK, SCENE = Block().eval().half(), (torch.randn(4, 4, 16, 16).half(),)


def calls(program: pipeline.Program, target: Any) -> int:
    """How often a program calls an operator."""
    return sum(node.target is target for node in program.graph.nodes)


def test_no_pass_swallows_an_operator_of_the_users() -> None:
    decomposed = pipeline.default().until("decompose")(BLOCK, SCENE)
    for target in {node.target: None for node in decomposed.graph.nodes if is_operator(node)}:
        compile = pipeline.default(registry=registry(target))
        program = compile.until("decompose")(BLOCK, SCENE)
        taken = list(mine_of(compile.without("decompose").until("validate")(program)))
        assert 0 < calls(program, target) <= len(taken), target


def test_a_pass_of_the_users_sees_everything() -> None:
    seen: list[str] = []

    @improvement
    def looks(rewriting: Rewriting) -> None:
        seen.extend(node.name for node in rewriting.nodes(aten.relu.default))

    mine = registry(aten.relu.default)
    pipeline.default(registry=mine).replace("improve", Improve(mine, (looks,))).until("improve")(nn.ReLU(), (X,))
    assert seen == ["relu"]


def test_softmax_is_reached_within_attention() -> None:
    x = torch.randn(1, 2, 4, 8)
    compile = pipeline.default(registry=registry(aten._softmax.default)).until("validate")
    validated = compile(Calls(lambda x: F.scaled_dot_product_attention(x, x, x)).eval(), (x,))
    assert list(mine_of(validated)) == ["aten._softmax.default"]


def test_nothing_is_traced_where_nothing_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.decomposition.candidates.CallSearch.find_decomposition", never)
    monkeypatch.setattr("pipeline.decomposition.unused_registrations._UnusedSearch.find_call", never)
    pipeline.default().until("validate")(BLOCK, SCENE)


def test_a_weight_that_is_transposed_is_no_call_of_permute() -> None:
    validated = pipeline.default(registry=registry(aten.permute.default)).until("validate")(LINEAR, (X,))
    assert [verdict.target for verdict in validated.verdicts.values()] == ["aten.linear.default"]


class TestRefused:
    """A converter whose validator refuses: everything is as it would be without it, and a warning says so."""

    def test_what_it_refuses_is_taken_apart_as_ever(self) -> None:
        mine = registry(aten.hypot.default, capability_validator=lambda node, _: pipeline.Rejection("not today"))
        model = Calls(lambda x: torch.hypot(x, x + 1)).eval()
        with pytest.warns(pipeline.UnreachedWarning, match="aten.hypot.default is not used: .*not today"):
            compiled = pipeline.default(registry=mine).replace("build", unbuilt)(model, (X,))
        assert not compiled.coverage.fallback
        assert "not today" in str(compiled.coverage)
        torch.testing.assert_close(compiled.module(executor="reference")(X), model(X))

    def test_one_that_takes_some(self) -> None:
        mine = registry(aten.hypot.default, capability_validator=lambda node, _: node.meta["val"].dim() == 2)
        model = Calls(lambda x: (torch.hypot(x, x + 1), torch.hypot(x[0], x[1]))).eval()
        validated = pipeline.default(registry=mine).until("validate")(model, (X,))
        assert list(mine_of(validated)) == ["aten.hypot.default"]
        assert all(verdict.supported for verdict in validated.verdicts.values())

    def test_several_results_are_items_again(self) -> None:
        target = aten._native_batch_norm_legit_no_training.default
        mine = registry(target, capability_validator=lambda node, _: False)
        with pytest.warns(pipeline.UnreachedWarning):
            compiled = pipeline.default(registry=mine).replace("build", unbuilt)(NORM, (IMAGE,))
        torch.testing.assert_close(compiled.module(executor="reference")(IMAGE), NORM(IMAGE), rtol=1e-4, atol=1e-5)


class TestUnreached:
    """What nothing uses is named, with what comes before it."""

    def named(self, mine: pipeline.ConverterRegistry, model: nn.Module, *args: torch.Tensor, **options: Any) -> str:
        """The warning."""
        with pytest.warns(pipeline.UnreachedWarning) as caught:
            validated = pipeline.default(registry=mine, **options).until("validate")(model.eval(), args)
        assert [str(w.message) for w in caught] == [str(each) for each in validated.program.unreached]
        return str(caught[0].message)

    def test_a_built_in_converter_is_asked_first(self) -> None:
        said = self.named(registry(aten.relu.default, priority=ConverterPriority.STANDARD), nn.ReLU(), X)
        assert "relu" in said
        assert "has precedence, and accepts" in said
        assert "HIGH" in said

    def test_the_composite_is_converted_as_a_whole(self) -> None:
        said = self.named(registry(aten.addmm.default, priority=ConverterPriority.STANDARD), LINEAR, X)
        assert "aten.linear.default, a composite of aten.addmm.default, has a converter" in said
        assert "HIGH" in said

    def test_our_decomposition_comes_before(self) -> None:
        mine = registry(aten.hypot.default, priority=ConverterPriority.STANDARD)
        assert "hypot is applied first" in self.named(mine, Calls(lambda x: torch.hypot(x, x + 1)), X)

    def test_it_takes_static_shapes_only(self) -> None:
        mine = registry(aten.addmm.default, supports_dynamic_shapes=False)
        with pytest.warns(pipeline.UnreachedWarning, match="(takes|supports) static shapes only"):
            pipeline.default(registry=mine).until("validate")(
                LINEAR, (pipeline.Input(min_shape=(1, 8), max_shape=(4, 8)),)
            )

    def test_what_is_kept_in_pytorch(self) -> None:
        said = self.named(registry(aten.relu.default), nn.ReLU(), X, torch_executed_ops={aten.relu.default})
        assert "torch_executed_ops keeps" in said

    def test_what_the_model_has_not_is_no_news(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pipeline.default(registry=registry(aten.erf.default, aten.topk.default)).until("validate")(LINEAR, (X,))

    def test_a_decomposition(self) -> None:
        table = pipeline.DECOMPOSITIONS.register(pipeline.register_torch_trt_decomposition(aten.relu.default)(hopeless))
        with pytest.warns(pipeline.UnreachedWarning, match="decomposition .*hopeless of aten.relu.default is not used"):
            pipeline.default(decompositions=table).until("validate")(nn.ReLU(), (X,))


def hopeless(x: torch.Tensor) -> Any:
    """A decomposition that never applies."""
    return NotImplemented


def test_a_decomposition_of_the_users_is_reached_from_a_composite() -> None:
    @pipeline.register_torch_trt_decomposition(aten.addmm.default)
    def taken_apart(self: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        return torch.add(self * beta, torch.mm(mat1, mat2) * alpha)

    compile = pipeline.default(decompositions=pipeline.DECOMPOSITIONS.register(taken_apart))
    program = compile.until("decompose")(LINEAR, (X,))
    assert calls(program, aten.mm.default) == 1
    assert program.decomposed == {aten.addmm.default}
