"""Torch-TensorRT's helpers, FX's converters, and what is refused: in words, with what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pipeline
from pipeline.compat.torch_tensorrt import (
    CONVERTERS,
    DYNAMO_CONVERTERS,
    BlockError,
    CallingConvention,
    ConverterPriority,
    ConverterRegistry,
    SourceIR,
    acc_ops,
    converter_utils,
    dynamo_tensorrt_converter,
    impl,
    tensorrt_converter,
)
from pipeline.stages import unbuilt
from pipeline.trt import trt
from tests.compat.test_field import HIGH, agrees, aten, batch

IR = SourceIR.ATEN
BATCH = batch(8)


def converted(function: Callable[..., Any], model: nn.Module, *args: Any, target: Any = aten.gelu.default) -> Any:
    """The model, with `function(ctx, name, x)` for the operator's converter."""

    @dynamo_tensorrt_converter(target, priority=HIGH, supports_dynamic_shapes=True)
    def converter(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        return function(ctx, name, *args)

    registry = DYNAMO_CONVERTERS.register(converter)
    return pipeline.default(registry=registry).replace("build", unbuilt)(model.eval(), args=args)


class Gelu(nn.Module):
    """An operator whose converter is to be."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 8] -> [N, 8]"""
        return torch.nn.functional.gelu(x)


def gives(function: Callable[..., Any], expected: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The function's layers compute what is expected, for sizes that vary."""
    program = converted(function, Gelu(), BATCH)
    for size in (1, 3, 4):
        x = torch.randn(size, 8)
        torch.testing.assert_close(program.module(executor="reference")(x), expected(x), rtol=1e-5, atol=1e-5)


def reversed_shape(ctx: Any, name: str, x: Any) -> Any:
    """Sizes by layers of the user's own, in a shape."""
    size = impl.shape.shape(ctx, None, IR, f"{name}_size", x, 0)
    rows = impl.shuffle.reshape(ctx, None, IR, f"{name}_rows", x, [8, size])
    return impl.shuffle.reshape(ctx, None, IR, f"{name}_back", rows, (-1, 8))


def over_own_layers(ctx: Any, name: str, x: Any) -> Any:
    """A block between layers that the user adds himself."""
    layer = ctx.net.add_activation(x, trt.ActivationType.RELU)
    own = ctx.net.add_elementwise(layer.get_output(0), x, trt.ElementWiseOperation.SUM).get_output(0)
    return impl.elementwise.sub(ctx, None, IR, f"{name}_sub", own, x)


def unknown_sizes(ctx: Any, name: str, x: Any) -> Any:
    """A block on a tensor whose sizes nobody knows but the engine."""
    layer = ctx.net.add_shuffle(x)
    layer.reshape_dims = trt.Dims([-1])
    flat = impl.elementwise.mul(ctx, None, IR, f"{name}_twice", layer.get_output(0), 2.0)
    return impl.shuffle.reshape(ctx, None, IR, f"{name}_back", flat, (-1, 8))


def split_and_joined(ctx: Any, name: str, x: Any) -> Any:
    """Blocks with several results."""
    left, right = impl.split.split(ctx, None, IR, f"{name}_split", x, 4, 1)
    parts = impl.slice.chunk(ctx, None, IR, f"{name}_chunk", right, 2, 1)
    return impl.cat.cat(ctx, None, IR, name, [*parts, left], 1)


FORMULAS: dict[str, tuple[Callable[..., Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "hard_sigmoid": (lambda b, x: b(x, 0.2, 0.4), lambda x: (0.2 * x + 0.4).clamp(0, 1)),
    "scaled_tanh": (lambda b, x: b(x, 2.0, 0.5), lambda x: 2 * torch.tanh(0.5 * x)),
    "thresholded_relu": (lambda b, x: b(x, 0.3), lambda x: torch.where(x > 0.3, x, 0)),
    "softsign": (lambda b, x: b(x), torch.nn.functional.softsign),
    "selu": (lambda b, x: b(x), torch.selu),
    "tanhshrink": (lambda b, x: b(x), torch.nn.functional.tanhshrink),
    "softplus": (lambda b, x: b(x, 2), lambda x: torch.nn.functional.softplus(x, 2)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_activations_without_an_operator_of_their_own(name: str) -> None:
    block, (says, expected) = getattr(impl.activation, name), FORMULAS[name]
    gives(lambda ctx, layer, x: says(lambda *args: block(ctx, None, IR, layer, *args), x), expected)


def rows(ctx: Any, name: str, x: Any) -> Any:
    """Helpers: constants of each kind, ranks, dtypes."""
    u = converter_utils
    ones = u.get_trt_tensor(ctx, np.ones((2, 8), np.float32), f"{name}_ones")
    assert u.get_trt_tensor(ctx, x, name) is x
    assert tuple(u.get_trt_tensor(ctx, 3, f"{name}_three").shape) == (1,)
    assert u.get_trt_tensor(ctx, 3, f"{name}_half", dtype=np.float16, min_rank=0).dtype == trt.float16
    row = u.append(ctx, None, IR, f"{name}_append", u.get_trt_tensor(ctx, torch.zeros(7), f"{name}_row"), 5.0)
    row = u.set_item(ctx, None, IR, f"{name}_set", row, 1, 4.0)
    wide, x = u.broadcast(ctx, row, x, "row", "x")
    assert len(wide.shape) == len(x.shape)
    both = u.broadcast_to_same_shape(ctx, None, IR, f"{name}_both", u.prepend_ones(ctx, row, "a", 1), ones)
    assert [tuple(each.shape) for each in both] == [(2, 8), (2, 8)]
    truth = u.cast_int_or_float_to_bool(ctx, name, u.get_trt_tensor(ctx, torch.tensor([2, 0]), f"{name}_truth"))
    assert truth.dtype == trt.bool
    quotient = u.cast_int_int_div_trt_tensor(ctx, *[u.get_trt_tensor(ctx, 3, "three")] * 2, name)
    assert {each.dtype for each in quotient} == {trt.float32}
    return impl.elementwise.add(ctx, None, IR, f"{name}_sum", wide, x)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (reversed_shape, lambda x: x),
        (over_own_layers, torch.relu),
        (unknown_sizes, lambda x: x * 2),
        (split_and_joined, lambda x: torch.cat([x[:, 4:], x[:, :4]], 1)),
        (rows, lambda x: x + torch.tensor([0, 4.0, 0, 0, 0, 0, 0, 5])),
    ],
    ids=["sizes", "own layers", "unknown sizes", "several results", "helpers"],
)
def test_blocks_and_helpers_compose(function: Any, expected: Any) -> None:
    gives(function, expected)


def test_helpers_on_plain_values() -> None:
    u = converter_utils
    assert u.has_dynamic_shape((2, -1))
    assert not u.has_dynamic_shape((2, 3))
    assert u.get_axes_for_reduce_op((0, 2)) == 0b101
    assert u.extend_attr_to_tuple(3, 2) == u.extend_attr_to_tuple([3], 2) == (3, 3)
    assert u.calculate_strides((2, 3, 4)) == [12, 4, 1]
    assert u.flatten_dims(torch.empty(2, 3, 4), 1, -1) == (2, 12)
    assert u.broadcastable(torch.empty(2, 1, 4), torch.empty(3, 1))
    assert not u.broadcastable(torch.empty(2), torch.empty(3))
    assert u.to_numpy(torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32
    assert u.to_numpy(None) is u.to_torch(None) is None
    assert u.to_numpy(3, trt.float16).dtype == np.float16
    assert u.to_torch(np.ones(2, np.float32), torch.float16).dtype == torch.float16


def test_weights_by_helper_are_refitted() -> None:
    def convolution(ctx: Any, name: str, x: Any, weight: Any, bias: Any, *rest: Any) -> Any:
        kernel = converter_utils.to_trt_weights(ctx, weight, name, "CONVOLUTION", "KERNEL", target=None)
        layer = ctx.net.add_convolution_nd(x, weight.shape[0], trt.Dims(tuple(weight.shape[2:])), kernel=kernel)
        shift = impl.shuffle.reshape(ctx, None, IR, f"{name}_row", bias, (1, -1, 1, 1))
        return impl.elementwise.add(ctx, None, IR, f"{name}_bias", layer.get_output(0), shift)

    model, other = nn.Conv2d(3, 4, 3).eval(), nn.Conv2d(3, 4, 3).eval()
    x = torch.randn(2, 3, 8, 8)
    program = converted(convolution, model, x, target=aten.convolution.default)
    assert set(program.refit_map) == {"weight", "bias"}
    agrees(program, model, x)
    agrees(pipeline.refit_module_weights(program, other), other, x)


@pytest.mark.parametrize("weight_of", [lambda w: w.t(), lambda w: w.numpy().T], ids=["tensor", "array"])
def test_a_transposed_parameter_is_still_that_parameter(weight_of: Any) -> None:
    def linear(ctx: Any, name: str, x: Any, weight: Any, bias: Any) -> Any:
        product = impl.matmul.matrix_multiply(ctx, None, IR, f"{name}_mm", x, weight_of(weight.detach()))
        return impl.elementwise.add(ctx, None, IR, f"{name}_add", product, bias)

    model, other, x = nn.Linear(8, 6).eval(), nn.Linear(8, 6).eval(), torch.randn(3, 8)
    program = converted(linear, model, x, target=aten.linear.default)
    assert set(program.refit_map) == {"weight", "bias"}
    agrees(pipeline.refit_module_weights(program, other), other, x)


# FX's converters


def test_what_the_decorator_declares_enters_by_register_and_by_from_legacy() -> None:
    @tensorrt_converter(acc_ops.relu, priority=ConverterPriority.HIGH, supports_dynamic_shapes=True)
    def relu(network: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        return network.add_activation(kwargs["input"], trt.ActivationType.RELU).get_output(0)

    for registry in (DYNAMO_CONVERTERS.register(relu), ConverterRegistry.from_legacy({acc_ops.relu: relu})):
        implementation, convention, _ = registry[aten.relu.default]
        assert implementation is relu
        assert convention is CallingConvention.LEGACY
        program = pipeline.default(registry=registry).replace("build", unbuilt)(nn.ReLU(), args=(torch.randn(2, 3),))
        agrees(program, torch.relu, torch.randn(2, 3))
    assert DYNAMO_CONVERTERS.register(relu)[aten.relu.default][2]["supports_dynamic_shapes"]


def test_a_validator_and_static_shapes_are_kept() -> None:
    @tensorrt_converter(acc_ops.relu, capability_validator=lambda node: node.meta["val"].dim() == 3)
    def relu(network: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        raise AssertionError("never called")

    compile = pipeline.default(registry=DYNAMO_CONVERTERS.register(relu)).replace("build", unbuilt)
    with pytest.warns(pipeline.UnreachedWarning, match="rejects this call"):
        compile(nn.ReLU(), args=(torch.randn(2, 3),))
    with pytest.warns(pipeline.UnreachedWarning, match="static shapes only"):
        compile(nn.ReLU(), args=(batch(3, 3),))


def test_a_disabled_converter_declares_nothing() -> None:
    @tensorrt_converter(acc_ops.relu, enabled=False)
    def relu(network: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        raise AssertionError("never called")

    assert DYNAMO_CONVERTERS.register(relu) == DYNAMO_CONVERTERS


def test_fxs_operators_are_frozen() -> None:
    """As docs/torch-tensorrt-names.md says: none is added."""
    assert len(acc_ops.OPERATORS) == 121 and len(acc_ops.FX_NAMES) == 5


def test_arguments_have_fxs_names() -> None:
    seen: dict[str, Any] = {}

    @tensorrt_converter(acc_ops.embedding)
    @tensorrt_converter(acc_ops.leaky_relu)
    @tensorrt_converter(acc_ops.permute)
    def noted(network: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        seen.update(kwargs)
        return CONVERTERS[target](network, target, args, kwargs, name)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """[N] -> [4, N]"""
            return nn.functional.leaky_relu(self.embedding(x), 0.3).permute(1, 0) + 1

    model, x = Model().eval(), torch.tensor([1, 3])
    program = pipeline.default(registry=DYNAMO_CONVERTERS.register(noted)).replace("build", unbuilt)(model, args=(x,))
    agrees(program, model, x)
    assert {"input", "negative_slope", "permutation", "weight", "padding_idx"} <= set(seen)


def test_our_converters_as_legacy_ones() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
    x = torch.randn(2, 3, 8, 8)
    registry = ConverterRegistry.from_legacy(CONVERTERS)
    assert len(registry) > 100
    compile = pipeline.default(registry=registry | DYNAMO_CONVERTERS)
    agrees(compile.replace("build", unbuilt)(model, args=(x,)), model, x)


# What is refused


REFUSED = {
    "a quantizer": (lambda: impl.quantize.quantize(None, None, IR, "q"), BlockError, "quantize the model before"),
    "blocks of a quantizer": (
        lambda: impl.dynamic_block_quantize.dynamic_block_quantize(),
        BlockError,
        "add_quantize",
    ),
    "a collective": (lambda: impl.nccl_ops.nccl_gather(None), BlockError, "process groups; leave"),
    "a dynamic range": (lambda: converter_utils.mark_as_int8_layer(None, (0, 1)), BlockError, "quantize the model"),
    "collectives": (lambda: converter_utils.load_tensorrt_llm_for_nccl(), BlockError, "runs there"),
    "a plugin": (lambda: impl.select.index_put_scatter_add_plugin(), BlockError, "index_put_converter"),
    "an operator of FX's": (lambda: acc_ops.lineer, AttributeError, "similar: linear"),
    "implicit batches": (
        lambda: tensorrt_converter(acc_ops.relu, no_explicit_batch_dim=True),
        ValueError,
        "is for implicit batch dims",
    ),
    "a module": (lambda: tensorrt_converter(nn.ReLU), TypeError, "aten.relu.default"),
    "no context": (lambda: impl.unary.exp("net", None, IR, "n", 1), TypeError, "first argument"),
    "an argument too few": (lambda: impl.unary.exp(None, None, IR, "n"), TypeError, "input_val"),
    "a bare network": (
        lambda: converter_utils.get_trt_tensor(trt.INetworkDefinition, 1, "x"),
        TypeError,
        "first argument",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused_in_words(what: str) -> None:
    use, kind, words = REFUSED[what]
    with pytest.raises(kind, match=words):
        use()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda ctx, name, x: impl.elementwise.add(ctx, None, IR, name, x, torch.ones(7)), "torch rejects this"),
        (lambda ctx, name, x: impl.unary.native_dropout(ctx, None, IR, name, x, 0.5, True), "train=False"),
        (
            lambda ctx, name, x: impl.upsample.upsample(ctx, None, IR, name, x, None, [2.0], "cubic", False),
            "does not resize",
        ),
        (lambda ctx, name, x: impl.cast.to_copy(ctx, None, IR, name, x, torch.float64), "float64"),
        (
            lambda ctx, name, x: impl.conv.convNd(
                ctx, None, IR, name, False, x, torch.ones(1, 8, 1), None, 1, 0, 1, 1, 0.1, 0
            ),
            "scale",
        ),
        (lambda ctx, name, x: impl.split.split(ctx, None, IR, name, x, 2, 0), "pass the sizes of the parts"),
    ],
    ids=["shapes", "training", "mode", "dtype", "quantized", "parts"],
)
def test_a_call_that_cannot_be_names_the_node_and_the_reason(function: Any, words: str) -> None:
    with pytest.raises(pipeline.ConversionError, match=words) as caught:
        converted(function, Gelu(), BATCH)
    assert "gelu" in str(caught.value)


def test_blocks_have_torch_tensorrts_signatures() -> None:
    def names(function: Any) -> list[str]:
        return list(inspect.signature(function).parameters)

    begin = ["ctx", "target", "source_ir", "name"]
    assert names(impl.elementwise.mul) == [*begin, "lhs_val", "rhs_val"]
    assert names(impl.activation.leaky_relu) == [*begin, "input_val", "alpha"]
    assert names(impl.normalization.softmax) == [*begin, "input", "dim", "half_to_float"]
    assert names(impl.slice.slice_op) == [*begin, "input", "dim", "start", "stop", "step"]
    assert names(impl.condition.where) == [*begin, "input", "other", "condition"]
    assert [str(ir) for ir in SourceIR] == ["nn", "acc", "aten", "prim", "torchtrt_lowered", "unknown_ir"]
