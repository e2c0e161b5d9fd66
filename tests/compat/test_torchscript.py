"""Converters declared by schema, weights with metadata, and evaluators, as people write them for TorchScript."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pipeline
from pipeline.compat.torchscript import EVALUATORS, Weights, converter, model
from pipeline.compat.torchscript.schemas import find_operator
from pipeline.trt import trt

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

HARDTANH = "aten::hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor"
LINEAR = "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"
ROWS = pipeline.Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4))

calls: list[tuple[Any, ...]] = []


@converter("aten::hardtanh_(Tensor(a!) self, Scalar min_val=-1, Scalar max_val=1) -> Tensor(a!)")
@converter(HARDTANH)
def hardtanh(ctx: Any, node: torch.fx.Node, args: tuple[Any, ...]) -> Any:
    """As in Torch-TensorRT's example of a converter in C++."""
    calls.append(args)
    layer = ctx.net.add_activation(args[0], trt.ActivationType.CLIP)
    layer.alpha, layer.beta = args[1], args[2]
    layer.name = f"clip of {node.name}"
    layer.get_output(0).name = f"clipped {node.name}"
    return layer.get_output(0)


@converter(LINEAR)
def linear(ctx: Any, node: torch.fx.Node, args: tuple[Any, ...]) -> Any:
    """A matrix product with weights of a tensor and of an array."""
    x, weight, bias = args
    kernel, offset = Weights(ctx, weight), Weights(ctx, bias.numpy())
    assert (kernel.num_output_maps, kernel.num_input_maps) == tuple(weight.shape)
    none, turned = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
    w = ctx.net.add_constant(kernel.shape, kernel.data).get_output(0)
    b = ctx.net.add_constant((1, *offset.shape), offset.data).get_output(0)
    product = ctx.net.add_matrix_multiply(x, none, w, turned).get_output(0)
    return ctx.net.add_elementwise(product, b, trt.ElementWiseOperation.SUM).get_output(0)


def make() -> nn.Module:
    parts = nn.Linear(4, 4), nn.Hardtanh(-0.5, 0.5), nn.Linear(4, 4), nn.Hardtanh(inplace=True), nn.Linear(4, 4)
    return nn.Sequential(*parts).eval()


@pytest.mark.parametrize("form", ["eager", "scripted", "traced"])
def test_converters_by_schema_are_reached_and_right_and_refitted(form: str) -> None:
    calls.clear()
    net, other, x = make(), make(), torch.randn(5, 4)
    forms = {"eager": lambda: net, "scripted": lambda: torch.jit.script(net), "traced": lambda: torch.jit.trace(net, x)}
    registry = pipeline.DYNAMO_CONVERTERS.register(hardtanh, linear)
    compiled = pipeline.default(registry=registry, require_full_compilation=True)(forms[form](), (ROWS,))
    torch.testing.assert_close(compiled(x), net(x))
    assert [args[1:] for args in calls] == [(-0.5, 0.5), (-1, 1)]
    assert all(isinstance(args[0], trt.ITensor) for args in calls)
    text = str(compiled.networks[0])
    assert "'clip of hardtanh'" in text
    assert "clipped hardtanh:" in text
    assert not compiled.refit_map.computed
    torch.testing.assert_close(pipeline.refit_module_weights(compiled, other)(x), other(x))


def test_names_that_are_given_twice_stay_apart() -> None:
    @converter(HARDTANH)
    def fixed(ctx: Any, node: torch.fx.Node, args: tuple[Any, ...]) -> Any:
        layer = ctx.net.add_activation(args[0], trt.ActivationType.CLIP)
        layer.alpha, layer.beta = args[1:]
        layer.name = "clip"
        layer.get_output(0).name = "clipped"
        return layer.get_output(0)

    net = nn.Sequential(nn.Hardtanh(-2, 2), nn.Linear(4, 4), nn.Hardtanh(), nn.Linear(4, 4)).eval()
    x = torch.randn(2, 4)
    compiled = pipeline.default(registry=pipeline.DYNAMO_CONVERTERS.register(fixed))(net, (x,))
    torch.testing.assert_close(compiled(x), net(x))
    assert "(clipped: " in str(compiled.networks[0])


@pytest.mark.parametrize(
    "value, shape, kernel, maps, dtype",
    [
        (torch.zeros(6, 3, 5, 7), (6, 3, 5, 7), (5, 7), (6, 3), trt.float32),
        (torch.zeros(6, 3).half(), (6, 3), (1,), (6, 3), trt.float16),
        (torch.zeros(3, 6).t(), (6, 3), (1,), (6, 3), trt.float32),
        (np.zeros(6, np.int32), (6,), (1,), (6, 6), trt.int32),
        (np.float32(2), (), (1,), (1, 1), trt.float32),
        (2.5, (), (1,), (1, 1), trt.float32),
        (2, (), (1,), (1, 1), trt.int64),
        (True, (), (1,), (1, 1), trt.bool),
    ],
)
def test_weights_have_metadata(value: Any, shape: Any, kernel: Any, maps: Any, dtype: Any) -> None:
    holder: list[torch.Tensor] = []
    ctx: Any = type("Context", (), {"cpu_weights_reference_holder": holder})()
    weights = Weights(ctx, value)
    assert (weights.shape, weights.kernel_shape) == (shape, kernel)
    assert (weights.num_output_maps, weights.num_input_maps) == maps
    assert (weights.data.dtype, weights.data.size) == (dtype, max(1, int(np.prod(shape))))
    assert holder == [weights.tensor]


def test_weights_of_what_is_none_are_refused() -> None:
    with pytest.raises(TypeError, match="takes a tensor, a numpy array or a number, not a str"):
        Weights(None, "x")  # type: ignore[arg-type]


ops = torch.ops.aten
KNOWN = {
    "aten::view(Tensor(a) self, int[] size) -> Tensor(a)": ops.view.default,
    "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)": ops.add.Tensor,
    "aten::relu_(Tensor self) -> Tensor": ops.relu.default,
    "aten::split.Tensor(Tensor self, int split_size, int dim=0) -> Tensor[]": ops.split.Tensor,
    HARDTANH: ops.hardtanh.default,
}


@pytest.mark.parametrize("schema", KNOWN)
def test_a_schema_is_that_of_an_operator(schema: str) -> None:
    assert find_operator(schema) is KNOWN[schema]


UNKNOWN = {
    "aten::hardtanh(Tensor self, Scalar min=-1, Scalar max_val=1) -> Tensor": "similar schemas:\n  " + HARDTANH,
    "aten::hrdtanh(Tensor self) -> Tensor": "similar schemas:\n.*aten::tanh",
    "aten::hardtanh": "similar schemas:\n  aten::hardtanh",
    "mine::nothing(Tensor self) -> Tensor": "no operator has the schema 'mine::nothing",
    "junk": "is not an operator schema; expected a schema such as 'aten::hardtanh",
    "aten::relu.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)": "pass the schema of one that returns a new tensor",
}


@pytest.mark.parametrize("schema", UNKNOWN)
def test_a_schema_that_no_operator_has_is_refused_with_the_nearest(schema: str) -> None:
    said = UNKNOWN[schema]
    pattern = said if ".*" in said else re.escape(said)
    with pytest.raises(ValueError, match=f"(?s){pattern}"):
        converter(schema)


def test_evaluators_are_a_frozen_mapping() -> None:
    def doubled(call: Any, *values: Any) -> Any:
        return [*values, *values]

    mine = EVALUATORS.register("prim::ListConstruct", doubled)
    assert mine["prim::ListConstruct"] is doubled
    assert EVALUATORS["prim::ListConstruct"] is not doubled
    assert len(mine) == len(EVALUATORS)

    def stacked(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x + 1])

    script, x = torch.jit.script(stacked), torch.ones(1, 2)
    compiled = pipeline.default()(model(script, evaluators=mine), (x,))
    torch.testing.assert_close(compiled(x), torch.cat([x, x + 1, x, x + 1]))


def test_an_evaluator_of_a_kind_takes_the_place_of_its_overloads() -> None:
    def added(x: torch.Tensor) -> torch.Tensor:
        return x * (x.size(0) + 1)

    mine = EVALUATORS.register("aten::add", lambda call, a, b: a + b + 10)
    x = torch.ones(2)
    torch.testing.assert_close(model(torch.jit.script(added), evaluators=mine)(x), x * 13)
    exact = EVALUATORS.register("aten::add.int", lambda call, a, b: a - b)
    torch.testing.assert_close(model(torch.jit.script(added), evaluators=exact)(x), x * 1)


@pytest.mark.parametrize(
    "key, error, said",
    [
        ("ListConstruct", ValueError, "is no kind of TorchScript node, such as 'prim::ListConstruct'"),
        ("aten::ad", ValueError, "TorchScript has no operator aten::ad; similar names: .*aten::add"),
        ("aten::add.itn", ValueError, "aten::add has no overload 'itn'; its overloads are Tensor, Scalar"),
        ("prim::Print", TypeError, "the evaluator of prim::Print must be a function, got a str"),
    ],
)
def test_a_key_that_no_node_can_have_is_refused(key: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        EVALUATORS.register(key, "f" if error is TypeError else len)  # type: ignore[arg-type]


def test_an_evaluator_that_raises_is_named() -> None:
    def broken(call: Any, *values: Any) -> Any:
        raise call.error("it is broken", "mend it")

    def stacked(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x])

    made = model(torch.jit.script(stacked), evaluators=EVALUATORS.register("prim::ListConstruct", broken))
    with pytest.raises(
        pipeline.CaptureError, match=r"prim::ListConstruct \(test_torchscript.py:\d+.*broken\n.*mend it"
    ):
        pipeline.default()(made, (torch.ones(2),))
