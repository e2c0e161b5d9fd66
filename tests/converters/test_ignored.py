"""More than twenty ways to pass over a converter, decomposition or setting of a user's: none is without a word."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import pipeline
from pipeline import ConverterPriority, ConverterRegistry, dynamo_tensorrt_converter, register_torch_trt_decomposition
from pipeline.stages import unbuilt
from pipeline.trt import CAPABILITIES, trt

aten = torch.ops.aten
X = torch.randn(4, 8)
LINEAR = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()


def mine(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
    """A converter of relu that raises."""
    raise RuntimeError("not like this")


def registry(target: Any, function: Callable[..., Any] = mine, **options: Any) -> ConverterRegistry:
    """Ours and a converter."""

    def converter(*args: Any) -> Any:
        return function(*args)

    options = {"priority": ConverterPriority.HIGH, "supports_dynamic_shapes": True, **options}
    return pipeline.DYNAMO_CONVERTERS.register(dynamo_tensorrt_converter(target, **options)(converter))


def table(target: Any, function: Callable[..., Any]) -> Any:
    """Our decompositions and one more."""
    return pipeline.DECOMPOSITIONS.register(register_torch_trt_decomposition(target)(function))


def compiled(model: nn.Module = LINEAR, args: Any = (X,), **options: Any) -> Any:
    """The program without engines."""
    return pipeline.default(**options).replace("build", unbuilt)(model, args)


def hopeless(*args: Any, **kwargs: Any) -> Any:
    """A decomposition that never applies."""
    return NotImplemented


def fails(path: str) -> bool:
    """A predicate that raises."""
    raise KeyError(path)


def plugin(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
    """A converter that asks for a plugin."""
    return ctx.net.add_plugin_v2([args[0]], None)


def elsewhere(ctx: Any, *_: Any) -> Any:
    """A converter that asks for another compiler's setting."""
    return ctx.compilation_settings.enabled_precisions


def refusing(node: Any, settings: Any) -> Any:
    """A validator that refuses."""
    return pipeline.Rejection("not on a Monday")


WAYS: dict[str, tuple[Callable[[], Any], str]] = {
    "standard behind a built-in": (
        lambda: compiled(registry=registry(aten.relu.default, priority=ConverterPriority.STANDARD)),
        "has precedence, and accepts.*HIGH",
    ),
    "standard within a composite": (
        lambda: compiled(registry=registry(aten.addmm.default, priority=ConverterPriority.STANDARD)),
        "a composite of aten.addmm.default, has a converter.*HIGH",
    ),
    "standard behind a decomposition": (
        lambda: compiled(_Hypot(), registry=registry(aten.hypot.default, priority=ConverterPriority.STANDARD)),
        "is applied first",
    ),
    "a validator that refuses": (
        lambda: compiled(registry=registry(aten.relu.default, capability_validator=refusing)),
        "not on a Monday",
    ),
    "a validator without a verdict": (
        lambda: compiled(registry=registry(aten.relu.default, capability_validator=lambda node: None)),
        "Rejection",
    ),
    "a validator with a text": (
        lambda: compiled(registry=registry(aten.relu.default, capability_validator=lambda node: "no")),
        "Rejection",
    ),
    "a validator that returns a class": (
        lambda: compiled(registry=registry(aten.relu.default, capability_validator=lambda node: pipeline.Rejection)),
        "returned <class .*Rejection'> for relu: expected True",
    ),
    "a converter of an in-place operator": (
        lambda: registry(aten.relu_.default),
        r"no aten.relu_.default, which writes to its arguments.*\(torch.ops.aten.relu.default\)",
    ),
    "a converter of a call with out": (lambda: registry(aten.exp.out), r"no aten.exp.out, which .*aten.exp.default"),
    "a decomposition of an in-place operator": (
        lambda: table(aten.relu_, lambda x: x.clamp(min=0)),
        r"no aten.relu_, which writes to its arguments.*\(torch.ops.aten.relu.default\)",
    ),
    "static shapes only": (
        lambda: compiled(
            args=(pipeline.Input(min_shape=(1, 8), max_shape=(4, 8)),),
            registry=registry(aten.addmm.default, supports_dynamic_shapes=False),
        ),
        "static shapes only",
    ),
    "kept in PyTorch": (
        lambda: compiled(registry=registry(aten.relu.default), torch_executed_ops={aten.relu}),
        "torch_executed_ops keeps",
    ),
    "a decomposition that never applies": (
        lambda: compiled(decompositions=table(aten.relu.default, hopeless)),
        "for relu, it returned NotImplemented",
    ),
    "a decomposition that calls its operator": (
        lambda: compiled(decompositions=table(aten.relu.default, lambda x: F.relu(x) + 0)),
        "for relu, it calls the operator itself",
    ),
    "a decomposition that reads data": (
        lambda: compiled(decompositions=table(aten.relu.default, lambda x: x if x.sum() > 0 else x * 0)),
        "for relu, its Python code reads a value of a tensor",
    ),
    "a decomposition with a tensor of its own": (
        lambda: compiled(decompositions=table(aten.relu.default, lambda x: torch.maximum(x, torch.tensor(0.0)))),
        "for relu, it uses a tensor that is no argument: create it inside",
    ),
    "a decomposition behind a converter": (
        lambda: compiled(
            registry=registry(aten.relu.default, lambda ctx, target, args, kwargs, name: args[0]),
            decompositions=table(aten.relu.default, lambda x: x.clamp(min=0)),
        ),
        "a HIGH converter of the operator is used instead",
    ),
    "a decomposition that is disabled": (
        lambda: compiled(
            decompositions=table(aten.relu.default, lambda x: x.clamp(min=0)),
            torch_disabled_decompositions={aten.relu.default},
        ),
        "torch_disabled_decompositions",
    ),
    "enabled and disabled": (
        lambda: compiled(torch_enabled_decompositions={aten.gelu}, torch_disabled_decompositions={aten.gelu.default}),
        "torch_enabled_decompositions and torch_disabled",
    ),
    "an operator to disable that nothing takes apart": (
        lambda: pipeline.default(torch_disabled_decompositions={aten.convolution.default}),
        "convolution.default in torch_disabled_decompositions has no effect: neither pipeline nor torch has a",
    ),
    "a composite that is disabled": (
        lambda: compiled(registry=registry(aten.addmm.default), torch_disabled_decompositions={aten.linear.default}),
        "keeps aten.linear.default from being",
    ),
    "a setting for what is not there": (lambda: compiled(torch_executed_ops={aten.topk}), "does not call it"),
    "a setting for a part": (
        lambda: compiled(torch_executed_ops={"aten.addmm.default"} | {aten.addmm.default}),
        "name aten.linear.default",
    ),
    "a predicate that matches nothing": (
        lambda: compiled(torch_executed_ops={lambda path: path == "encoder"}),
        "returns False for every module.*'0'",
    ),
    "a predicate that raises": (lambda: compiled(torch_executed_ops={fails}), "predicate .*fails raised KeyError"),
    "a dict to override": (lambda: pipeline.DYNAMO_CONVERTERS.override({aten.relu.default: mine}), "from_legacy"),
    "a registry of a number": (lambda: ConverterRegistry([1]), "takes declarations of converters, not 1"),
    "a key twice": (
        lambda: ConverterRegistry.from_legacy({aten.relu: mine, aten.relu.default: hopeless}),
        "are the same operator",
    ),
    "a converter that raises": (
        lambda: compiled(registry=registry(aten.relu.default)),
        r"converter.*raised not like this \(.*test_ignored.py, line \d+\)",
    ),
    "a plugin": (lambda: compiled(registry=registry(aten.relu.default, plugin)), "no plugin layers"),
    "a setting of another compiler": (
        lambda: compiled(registry=registry(aten.relu.default, elsewhere)),
        "enabled_precisions.*strongly typed",
    ),
    "inputs of another name": (lambda: pipeline.default()(LINEAR, arg_inputs=(X,)), "use args="),
    "inputs for settings": (lambda: pipeline.default(inputs=(X,)), "given to the call"),
    "data for a size": (
        lambda: compiled(_Nonzero(), registry=registry(aten.nonzero.default, requires_output_allocator=True)),
        "data-dependent size, and tensorrt_rtx has no layers",
    ),
}


class _Hypot(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The length of (x, x + 1)."""
        return torch.hypot(x, x + 1)


class _Nonzero(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Where x is not zero."""
        return x.relu().nonzero()


def test_there_are_more_than_twenty_ways() -> None:
    assert len(WAYS) > 20


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_ignored_without_a_word(way: str) -> None:
    use, words = WAYS[way]
    if way in ("a plugin", "data for a size") and CAPABILITIES.plugins:
        pytest.skip("TensorRT-RTX alone has none")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            use()
            told = "\n".join(str(w.message) for w in said if w.category is pipeline.UnreachedWarning)
        except (pipeline.PipelineError, TypeError, ValueError) as error:
            told = str(error)
    assert re.search(words, told, re.S), told or "nothing was said"


def test_a_disabled_decomposition_leaves_its_operator_whole() -> None:
    program = pipeline.default(torch_disabled_decompositions={aten.hypot}).until("decompose")(_Hypot(), (X,))
    assert aten.hypot.default in {node.target for node in program.graph.nodes}


def test_an_enabled_decomposition_comes_before_converters() -> None:
    compile = pipeline.default(torch_enabled_decompositions={aten.relu}).until("decompose")
    assert aten.relu.default in pipeline.DYNAMO_CONVERTERS
    assert aten.relu.default not in {node.target for node in compile(nn.ReLU(), (X,)).graph.nodes}


def test_what_torch_cannot_decompose_is_passed_over() -> None:
    """torch's decomposition of gru raises for this layer, and is read only to tell of settings that are not used."""
    compile = pipeline.default(min_block_size=1, torch_executed_ops={aten.gt.Scalar}).replace("build", unbuilt)
    with pytest.warns(pipeline.UnreachedWarning, match="gt.Scalar"):
        compiled = compile(nn.GRU(8, 4).eval(), (pipeline.Input(min_shape=(2, 3, 8), max_shape=(9, 3, 8)),))
    assert not compiled.coverage.fallback


def test_a_recorded_weight_keeps_its_name_and_its_recipe() -> None:
    def convert(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        bias, x, weight = args[:3]
        ctx.record_weight("my.weight", weight)
        constants = [ctx.net.add_constant(tuple(v.shape), trt.Weights(v.numpy())) for v in (weight, bias[None])]
        product = ctx.net.add_matrix_multiply(
            x, trt.MatrixOperation.NONE, constants[0].get_output(0), trt.MatrixOperation.NONE
        )
        added = ctx.net.add_elementwise(product.get_output(0), constants[1].get_output(0), trt.ElementWiseOperation.SUM)
        return added.get_output(0)

    made = compiled(registry=registry(aten.addmm.default, convert))
    assert made.refit_map["my.weight"].parameters == ("0.weight",)
    torch.testing.assert_close(made.module(executor="reference")(X), LINEAR(X), rtol=1e-5, atol=1e-6)


def test_converters_are_listed_where_they_are_written() -> None:
    listed = {d.key: d.support.name for d in pipeline.DYNAMO_CONVERTERS.declarations()}
    assert listed[aten.exp.default] == "pipeline.converters.unary.unary_function"
    for name in listed.values():
        module, _, function = name.rpartition(".")
        assert callable(getattr(importlib.import_module(module), function)), name
