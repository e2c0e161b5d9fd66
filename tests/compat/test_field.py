"""Converters as people have written them for Torch-TensorRT, brought here with other import lines and nothing else.

Each is of a kind that public code is full of: layers straight on ``ctx.net`` with weights from numpy, converters of own
operators, converters that take a part of what an operator does, that read sizes at run time, that keep attention whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import pipeline
from pipeline import ConversionContext, ConverterPriority, dynamo_tensorrt_converter, register_torch_trt_decomposition
from pipeline.converters.converter_utils import (
    TRTTensor,
    args_bounds_check,
    cast_trt_tensor,
    enforce_tensor_types,
    get_positive_dim,
    get_trt_tensor,
    set_layer_name,
)
from pipeline.trt import trt

aten = torch.ops.aten
SUM, PROD, DIV = (getattr(trt.ElementWiseOperation, name) for name in ("SUM", "PROD", "DIV"))
HIGH = ConverterPriority.HIGH


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def compiled(model: Any, inputs: Sequence[Any], *converters: Any, **fields: Any) -> pipeline.Compiled:
    """The model with these converters, all of it in engines."""
    model = model if isinstance(model, nn.Module) else Calls(model)
    registry = pipeline.DYNAMO_CONVERTERS.register(*converters)
    return pipeline.default(registry=registry, require_full_compilation=True, **fields)(model.eval(), args=inputs)


def agrees(program: pipeline.Compiled, model: Any, *inputs: torch.Tensor) -> None:
    """What was compiled gives what eager gives."""
    torch.testing.assert_close(program.module(executor="reference")(*inputs), model(*inputs), rtol=1e-5, atol=1e-5)


def batch(*sizes: int) -> pipeline.Input:
    """A float32 input of batch 1 to 4."""
    return pipeline.Input(min_shape=(1, *sizes), opt_shape=(2, *sizes), max_shape=(4, *sizes))


# Layers straight on the network, with weights that only numpy knows


@dynamo_tensorrt_converter(aten.hardsigmoid.default, priority=HIGH, supports_dynamic_shapes=True)
def hard_sigmoid(ctx: ConversionContext, target: Any, args: Any, kwargs: Any, name: str) -> trt.ITensor:
    x = cast_trt_tensor(ctx, args[0], trt.float32, f"{name}_cast", target)
    ones = (1,) * len(x.shape)
    three = ctx.net.add_constant(ones, np.full(ones, 3, dtype=np.float32))
    six = ctx.net.add_constant(ones, trt.Weights(np.full(ones, 6, dtype=np.float32)))
    shifted = ctx.net.add_elementwise(x, three.get_output(0), SUM)
    shifted.name = name
    clipped = ctx.net.add_activation(shifted.get_output(0), trt.ActivationType.CLIP)
    clipped.alpha, clipped.beta = 0.0, 6.0
    set_layer_name(clipped, target, name)
    scaled = ctx.net.add_elementwise(clipped.get_output(0), six.get_output(0), DIV)
    scaled.get_output(0).name = f"{name}_output"
    return scaled.get_output(0)


def test_layers_on_the_network_with_weights_of_numpy() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return functional.hardsigmoid(functional.hardsigmoid(x))

    program = compiled(twice, (batch(5),), hard_sigmoid)
    agrees(program, twice, torch.randn(3, 5))
    printed = str(program.networks[0])
    kinds = [(layer.kind, layer.name.rpartition("-")[2]) for layer in program.networks[0].layers]
    assert ("ACTIVATION", "[hardsigmoid_1]") in kinds
    assert [weight.name for weight in program.networks[0].weights] == ["float32[1] = [3.0]", "float32[1] = [6.0]"]
    assert printed == str(compiled(twice, (batch(5),), hard_sigmoid).networks[0])


class Filtered(nn.Module):
    """A convolution and something that reads it."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 3, H, W] -> [N, 4, H', W']"""
        return torch.relu(self.conv(x))


def convolution_of(kernel_of: Any) -> Any:
    """A converter of convolutions by numpy kernels."""

    @dynamo_tensorrt_converter(aten.convolution.default, priority=HIGH, supports_dynamic_shapes=True)
    def convolution(ctx: ConversionContext, target: Any, args: Any, kwargs: Any, name: str) -> trt.ITensor:
        x, weight, bias, stride, padding, dilation, _, _, groups = args
        kernel, shift = kernel_of(weight), trt.Weights(bias.detach().numpy())
        size = trt.Dims(tuple(weight.shape[2:]))
        layer = ctx.net.add_convolution_nd(x, weight.shape[0], size, kernel=trt.Weights(kernel), bias=shift)
        layer.stride_nd, layer.padding_nd, layer.dilation_nd = map(tuple, (stride, padding, dilation))
        layer.num_groups = groups
        layer.name = f"[CONVOLUTION]-[{target}]-[{name}]"
        return layer.get_output(0)

    return convolution


def test_a_parameter_through_numpy_is_still_that_parameter() -> None:
    torch.manual_seed(0)
    model, other, x = Filtered(), Filtered(), torch.randn(3, 3, 8, 8)
    program = compiled(model, (batch(3, 8, 8),), convolution_of(lambda weight: weight.detach().numpy()))
    assert set(program.refit_map) == {"conv.weight", "conv.bias"}
    agrees(program, model, x)
    agrees(pipeline.refit_module_weights(program, other), other, x)


def test_what_a_converter_computes_from_a_parameter_is_told() -> None:
    model, x = Filtered(), torch.randn(2, 3, 8, 8)
    program = compiled(model, (batch(3, 8, 8),), convolution_of(lambda weight: weight.numpy() * 2 / 2))
    agrees(program, model, x)
    assert set(program.refit_map) == {"conv.bias"}
    [(name, why)] = program.refit_map.computed.items()
    assert name.startswith("float32[108]")
    assert "computed it from p_conv_weight" in why


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64], ids=str)
def test_weights_by_address(dtype: torch.dtype) -> None:
    """As it is done for dtypes that numpy lacks; the tensor is kept alive as the contract says."""

    @dynamo_tensorrt_converter(aten.neg.default, priority=HIGH)
    def neg(ctx: ConversionContext, target: Any, args: Any, kwargs: Any, name: str) -> trt.ITensor:
        minus = torch.full((1, 1), -1, dtype=dtype)
        ctx.record_weight(f"{name} CONSTANT", minus)
        weights = trt.Weights(args[0].dtype, minus.data_ptr(), minus.numel())
        constant = ctx.net.add_constant((1, 1), weights).get_output(0)
        return ctx.net.add_elementwise(args[0], constant, PROD).get_output(0)

    x = torch.arange(6).reshape(2, 3).to(dtype)
    agrees(compiled(torch.neg, (x,), neg), torch.neg, x)


# Operators of one's own


@torch.library.custom_op("field::gated", mutates_args=())
def gated(x: torch.Tensor, weight: torch.Tensor, dim: int = -1) -> tuple[torch.Tensor, torch.Tensor]:
    """A gate and what it lets through."""
    gate = torch.sigmoid(x * weight)
    return gate, x * gate


@gated.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, dim: int = -1) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


class Gated(nn.Module):
    """An operator of the user's, of an input and a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 5] -> [N, 5]"""
        gate, passed = torch.ops.field.gated(x + 1, self.weight)
        return gate - passed


@dynamo_tensorrt_converter(torch.ops.field.gated.default, supports_dynamic_shapes=True)
@enforce_tensor_types({0: (TRTTensor,), 1: (TRTTensor,)})
def gated_converter(ctx: ConversionContext, target: Any, args: Any, kwargs: Any, name: str) -> Any:
    x, weight = args[0], get_trt_tensor(ctx, args[1], f"{name}_weight", min_rank=len(args[0].shape))
    assert get_positive_dim(args_bounds_check(args, 2, -1), len(x.shape)) == 1
    row = ctx.net.add_shuffle(weight)
    row.reshape_dims = trt.Dims([1, 5])
    product = ctx.net.add_elementwise(x, row.get_output(0), PROD)
    gate = ctx.net.add_activation(product.get_output(0), trt.ActivationType.SIGMOID)
    passed = ctx.net.add_elementwise(x, gate.get_output(0), PROD)
    for layer, suffix in ((product, "product"), (gate, "gate"), (passed, "passed")):
        set_layer_name(layer, target, f"{name}_{suffix}")
    return gate.get_output(0), passed.get_output(0)


def test_an_own_operator_with_two_results() -> None:
    model, x = Gated(), torch.randn(3, 5)
    program = compiled(model, (batch(5),), gated_converter)
    agrees(program, model, x)
    assert set(program.refit_map) == {"weight"}
    assert "[ELEMENTWISE]-[field.gated.default]-[gated_passed]" in str(program.networks[0])


def test_without_its_converter_an_own_operator_runs_in_pytorch() -> None:
    model, x = Gated().eval(), torch.randn(3, 5)
    program = pipeline.default(min_block_size=1)(model, args=(batch(5),))
    assert "field.gated.default" in [fallback.target for fallback in program.coverage.fallback]
    agrees(program, model, x)


def test_an_own_operator_can_be_decomposed() -> None:
    @register_torch_trt_decomposition(torch.ops.field.gated.default)
    def spelled_out(x: torch.Tensor, weight: torch.Tensor, dim: int = -1) -> tuple[torch.Tensor, torch.Tensor]:
        gate = aten.sigmoid.default(aten.mul.Tensor(x, weight))
        return gate, aten.mul.Tensor(x, gate)

    model, x = Gated(), torch.randn(3, 5)
    agrees(compiled(model, (batch(5),), decompositions=pipeline.DECOMPOSITIONS.register(spelled_out)), model, x)


# A part of an operator; the rest is ours


def gelus(priority: ConverterPriority, counted: list[str]) -> Any:
    """A converter of the tanh approximation that counts its calls."""

    @dynamo_tensorrt_converter(
        aten.gelu.default,
        capability_validator=lambda node, settings: node.kwargs.get("approximate") == "tanh",
        priority=priority,
        supports_dynamic_shapes=True,
    )
    def gelu(ctx: ConversionContext, target: Any, args: Any, kwargs: Any, name: str) -> trt.ITensor:
        counted.append(name)
        return ctx.net.add_activation(args[0], trt.ActivationType.GELU_TANH).get_output(0)

    return gelu


@pytest.mark.parametrize(
    ("priority", "approximate", "calls"),
    [(HIGH, "tanh", 1), (HIGH, "none", 0), (ConverterPriority.STANDARD, "tanh", 0)],
    ids=["high", "refused", "standard"],
)
def test_the_validator_and_the_priority_decide(priority: ConverterPriority, approximate: str, calls: int) -> None:
    counted: list[str] = []
    model, x = nn.GELU(approximate), torch.randn(3, 5)
    agrees(compiled(model, (batch(5),), gelus(priority, counted)), model, x)
    assert len(counted) == calls


@dynamo_tensorrt_converter(
    aten._to_copy.default,
    capability_validator=lambda node, settings: node.kwargs.get("dtype") == torch.bfloat16,
    priority=HIGH,
    supports_dynamic_shapes=True,
)
def to_bfloat16(ctx: ConversionContext, target: Any, args: Any, kwargs: Any, name: str) -> trt.ITensor:
    layer = ctx.net.add_cast(args[0], trt.bfloat16)
    layer.name = f"{name}_mine"
    return layer.get_output(0)


def test_a_converter_of_one_cast() -> None:
    def rounded(x: torch.Tensor) -> torch.Tensor:
        return (x.to(torch.bfloat16) * 2).to(torch.float16)

    program = compiled(rounded, (batch(5),), to_bfloat16)
    agrees(program, rounded, torch.randn(3, 5))
    assert "_mine" in str(program.networks[0])


@dynamo_tensorrt_converter(aten.slice.Tensor, priority=HIGH)
@enforce_tensor_types({0: (trt.ITensor,)})
def static_slice(ctx: ConversionContext, target: Any, args: Any, kwargs: Any, name: str) -> trt.ITensor:
    x, rank = args[0], len(args[0].shape)
    dim = get_positive_dim(args_bounds_check(args, 1, 0), rank)
    size, step = x.shape[dim], args_bounds_check(args, 4, 1)
    start, end = (min(max(i + size * (i < 0), 0), size) for i in (args_bounds_check(args, 2, 0), args[3]))
    starts, steps = (
        trt.Dims([start * (d == dim) for d in range(rank)]),
        trt.Dims([1 + (step - 1) * (d == dim) for d in range(rank)]),
    )
    sizes = trt.Dims([-(-(end - start) // step) if d == dim else x.shape[d] for d in range(rank)])
    layer = ctx.net.add_slice(x, starts, sizes, steps)
    layer.name = f"{name}_mine"
    return layer.get_output(0)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_converter_of_static_shapes_leaves_the_others_to_ours(dynamic: bool) -> None:
    def sliced(x: torch.Tensor) -> torch.Tensor:
        return x[:, 1:-1:2] + 1

    x = torch.randn(2, 8)
    program = compiled(sliced, (batch(8) if dynamic else x,), static_slice)
    agrees(program, sliced, x)
    assert ("_mine" in str(program.networks[0])) is not dynamic


# Sizes that are known at run time


@dynamo_tensorrt_converter(aten.view.default, priority=HIGH, supports_dynamic_shapes=True)
def view(ctx: ConversionContext, target: Any, args: Any, kwargs: Any, name: str) -> trt.ITensor:
    sizes = [get_trt_tensor(ctx, size, f"{name}_{i}", np.int64, min_rank=1) for i, size in enumerate(args[1])]
    shape = ctx.net.add_concatenation(sizes)
    shape.axis = 0
    layer = ctx.net.add_shuffle(args[0])
    layer.set_input(1, shape.get_output(0))
    layer.name = f"{name}_mine"
    return layer.get_output(0)


@dynamo_tensorrt_converter(aten.flatten.using_ints, priority=HIGH, supports_dynamic_shapes=True)
def flattened(ctx: ConversionContext, target: Any, args: Any, kwargs: Any, name: str) -> trt.ITensor:
    x = args[0]
    assert x.shape[0] == -1
    whole = ctx.net.add_shape(x).get_output(0)
    first = ctx.net.add_slice(whole, (0,), (1,), (1,)).get_output(0)
    rest = ctx.net.add_constant((1,), np.array([-1], dtype=np.int64)).get_output(0)
    shape = ctx.net.add_concatenation([first, rest])
    layer = ctx.net.add_shuffle(x)
    layer.set_input(1, shape.get_output(0))
    layer.name = f"{name}_mine"
    return layer.get_output(0)


@pytest.mark.parametrize(
    ("converter", "model"),
    [
        (view, lambda x: x.view(x.shape[0] * 2, x.shape[1] // 2, 3) + 1),
        (flattened, lambda x: torch.flatten(x, 1) + 1),
    ],
    ids=["view", "flatten"],
)
def test_sizes_as_tensors(converter: Any, model: Any) -> None:
    program = compiled(model, (batch(4, 3),), converter)
    assert "_mine" in str(program.networks[0])
    for size in (1, 4):
        agrees(program, model, torch.randn(size, 4, 3))
