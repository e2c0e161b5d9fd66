"""What users plug in and get wrong: converters and decompositions are told by name, with the node and its line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline.impl import elementwise
from pipeline.trt import trt

aten = torch.ops.aten
KEPT: list[Any] = []


class Activated(nn.Module):
    """An activation between two operators."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        return torch.nn.functional.silu(x * 2) + 1


def foreign(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
    """A tensor of another network, which is kept."""
    builder = trt.Builder(ctx.log)
    network = builder.create_network(0)
    KEPT.extend([builder, network])
    return network.add_identity(network.add_input("x", trt.float32, (2, 4))).get_output(0)


def inputs(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
    """An input of its own."""
    return ctx.net.add_input("mine", trt.float32, (2, 4))


def outputs(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
    """An output of its own."""
    result = elementwise.binary(ctx, name, "PROD", args[0], 2.0)
    ctx.net.mark_output(result)
    return result


def lookup(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
    """Fails without a word."""
    return {}["x"]


CONVERTERS: dict[Callable[..., Any], str] = {
    foreign: "which is a tensor of another network",
    inputs: "the converter added an input or output to the network",
    outputs: "the converter added an input or output to the network",
    lookup: "KeyError: 'x'",
}


def said_by(compile: pipeline.Pipeline) -> str:
    with pytest.raises(pipeline.ConversionError) as caught:
        compile(Activated().eval(), (torch.ones(2, 4),))
    assert "aten.silu.default at node silu (test_plugged_in.py:" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("converter", CONVERTERS, ids=lambda f: f.__name__)
def test_a_wrong_converter_is_told_at_its_own_node(converter: Callable[..., Any]) -> None:
    declared = pipeline.dynamo_tensorrt_converter(aten.silu.default, priority=pipeline.ConverterPriority.HIGH)
    registry = pipeline.DYNAMO_CONVERTERS.register(declared(lambda *given: converter(*given)))
    assert CONVERTERS[converter] in said_by(pipeline.default(registry=registry).until("convert"))


def test_a_converter_may_give_what_it_was_given() -> None:
    @pipeline.dynamo_tensorrt_converter(aten.silu.default, priority=pipeline.ConverterPriority.HIGH)
    def nothing(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        return args[0]

    compile = pipeline.default(registry=pipeline.DYNAMO_CONVERTERS.register(nothing))
    assert len(compile(Activated().eval(), (torch.ones(2, 4),)).engines) == 1


DECOMPOSITIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (lambda x: 1 / 0, "is wrong: ZeroDivisionError: division by zero"),
    "another rank": (
        lambda x: x.sum(),
        r"decomposition returned float32[], but must return float32[2, 4] like its operator",
    ),
    "another dtype": (
        lambda x: x.half(),
        "decomposition returned float16[2, 4], but must return float32[2, 4] like its operator",
    ),
    "nothing": (lambda x: None, "decomposition returned None, but must return float32[2, 4] like its operator"),
    "a number": (lambda x: 3.0, "decomposition returned a float, but must return float32[2, 4] like its operator"),
    "two": (lambda x: (x, x), "decomposition returned 2 results, but must return float32[2, 4] like its operator"),
    "another signature": (lambda: 3, "takes 0 positional arguments but 1 was given"),
}


@pytest.mark.parametrize("function, says", DECOMPOSITIONS.values(), ids=DECOMPOSITIONS)
def test_a_wrong_decomposition_is_told_at_its_own_node(function: Callable[..., Any], says: str) -> None:
    declared = pipeline.register_torch_trt_decomposition(aten.silu.default)(lambda *given: function(*given))
    table = pipeline.DECOMPOSITIONS.register(declared)
    message = said_by(pipeline.default(decompositions=table).until("decompose"))
    assert "its decomposition tests.test_plugged_in.<lambda> is wrong: " in message
    assert says in message
