"""Converters brought from Torch-TensorRT, and the graph: attention kept whole, passes, what fails."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import pipeline
from pipeline import ConversionContext, dynamo_tensorrt_converter
from pipeline.converters.converter_utils import args_bounds_check
from pipeline.improvements import PASSES, Rewriting, improvement
from pipeline.stages import Improve
from pipeline.trt import trt
from tests.compat.test_field import HIGH, PROD, Calls, Gated, agrees, aten, batch, compiled

# Attention kept whole, and passes over the graph


def plain_attention(ctx: ConversionContext, name: str, query: Any, key: Any, value: Any) -> trt.ITensor:
    """softmax(q kᵀ / √d) v, layer by layer."""
    scale = np.full((1, 1, 1, 1), query.shape[-1] ** -0.5, dtype=np.float32)
    scaled = ctx.net.add_elementwise(query, ctx.net.add_constant(scale.shape, scale).get_output(0), PROD)
    none, transposed = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
    scores = ctx.net.add_matrix_multiply(scaled.get_output(0), none, key, transposed)
    weights = ctx.net.add_softmax(scores.get_output(0))
    weights.axes, weights.name = 1 << 3, f"{name}_mine"
    return ctx.net.add_matrix_multiply(weights.get_output(0), none, value, none).get_output(0)


@dynamo_tensorrt_converter(aten.scaled_dot_product_attention.default, priority=HIGH, supports_dynamic_shapes=True)
def attention(ctx: ConversionContext, target: Any, args: Any, kwargs: Any, name: str) -> trt.ITensor:
    query, key, value = args[:3]
    assert args_bounds_check(args, 3) is None
    assert not args_bounds_check(args, 5, False)
    return plain_attention(ctx, name, query, key, value)


@torch.library.custom_op("field::attention", mutates_args=())
def own_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Attention of the user's own."""
    return functional.scaled_dot_product_attention(query, key, value)


@own_attention.register_fake
def _(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(query)


@dynamo_tensorrt_converter(torch.ops.field.attention.default, supports_dynamic_shapes=True)
def own_attention_converter(ctx: ConversionContext, target: Any, args: Any, kwargs: Any, name: str) -> trt.ITensor:
    return plain_attention(ctx, name, *args)


def attend(x: torch.Tensor) -> torch.Tensor:
    """[N, heads, length, dim] -> [N, heads, length, dim]"""
    return functional.scaled_dot_product_attention(x, x + 1, x - 1)


def test_an_operator_with_a_converter_is_not_taken_apart() -> None:
    program = compiled(attend, (batch(2, 4, 8),), attention)
    assert "scaled_dot_product_attention_mine" in str(program.networks[0])
    agrees(program, attend, torch.randn(3, 2, 4, 8))


@improvement
def to_own(rewriting: Rewriting) -> None:
    """A pass that puts an operator of the user's in the place of PyTorch's."""
    for node in rewriting.nodes(aten.scaled_dot_product_attention.default):
        rewriting.offer(node, torch.ops.field.attention.default, node.args)


def test_a_pass_that_rewrites_for_a_converter() -> None:
    registry = pipeline.DYNAMO_CONVERTERS.register(own_attention_converter)
    stage = Improve(registry, (to_own, *PASSES))
    compile = pipeline.default(registry=registry, require_full_compilation=True).replace("improve", stage)
    program = compile(Calls(attend).eval(), args=(batch(2, 4, 8),))
    assert "_mine" in str(program.networks[0])
    agrees(program, attend, torch.randn(3, 2, 4, 8))


@dynamo_tensorrt_converter(aten.hardswish.default, priority=HIGH, supports_dynamic_shapes=True)
def either(ctx: ConversionContext, target: Any, args: Any, kwargs: Any, name: str) -> trt.ITensor:
    branch = ctx.net.add_if_conditional()
    branch.set_condition(ctx.net.add_constant((), np.array(True)).get_output(0))
    x = branch.add_input(args[0]).get_output(0)
    then = ctx.net.add_activation(x, trt.ActivationType.RELU).get_output(0)
    otherwise = ctx.net.add_activation(x, trt.ActivationType.TANH).get_output(0)
    return branch.add_output(then, otherwise).get_output(0)


def test_layers_in_a_conditional() -> None:
    program = compiled(functional.hardswish, (batch(5),), either)
    agrees(program, torch.relu, torch.randn(3, 5))


@torch.library.custom_op("field::bump", mutates_args=("x",))
def bump(x: torch.Tensor) -> None:
    """Writes to its argument."""
    x.add_(1)


def test_an_own_operator_that_writes_to_its_argument_runs_in_pytorch() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x) * 2
        torch.ops.field.bump(y)
        return y

    x = torch.randn(2, 3)
    program = pipeline.default(min_block_size=1)(Calls(model).eval(), args=(x,))
    agrees(program, model, x)
    assert "writes to its arguments" in str(program.coverage)


# What was written for something else is told, not lost


@pytest.mark.parametrize(
    ("validator", "said"),
    [
        (lambda node, settings: torch.float16 in settings.enabled_precisions, "enabled_precisions"),
    ],
    ids=["a setting that is none"],
)
def test_a_validator_that_fails_is_told_though_another_converter_takes_the_node(
    validator: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    @dynamo_tensorrt_converter(aten.tanh.default, capability_validator=validator, priority=HIGH)
    def never(*_: Any) -> None:
        raise AssertionError

    x = torch.randn(2, 3)
    with caplog.at_level(logging.WARNING, logger="pipeline"):
        agrees(compiled(torch.tanh, (x,), never), torch.tanh, x)
    assert [record for record in caplog.records if said in record.getMessage()]


def test_a_setting_that_is_none_is_named() -> None:
    @dynamo_tensorrt_converter(aten.tanh.default, priority=HIGH)
    def tanh(ctx: ConversionContext, target: Any, args: Any, kwargs: Any, name: str) -> trt.ITensor:
        assert torch.float16 in ctx.compilation_settings.enabled_precisions
        return ctx.net.add_activation(args[0], trt.ActivationType.TANH).get_output(0)

    with pytest.raises(pipeline.ConversionError, match=r"(?s)aten\.tanh\.default.*enabled_precisions"):
        compiled(torch.tanh, (torch.randn(2, 3),), tanh)


def test_a_plugin_that_the_library_does_not_have_is_named() -> None:
    @dynamo_tensorrt_converter(torch.ops.field.gated.default)
    def plugin(ctx: ConversionContext, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        return ctx.net.add_plugin_v3(list(args), [], None).get_output(0)

    with pytest.raises(pipeline.ConversionError, match=r"(?s)field\.gated\.default.*add_plugin_v3"):
        compiled(Gated(), (torch.randn(2, 5),), plugin)
