"""Building blocks take a ``Net``, and from converters elsewhere a context and a name: the same layers come of both."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Any

import pytest
import torch

from pipeline import impl
from pipeline.impl import base, elementwise
from pipeline.network.context import ConversionContext, NetworkError
from pipeline.network.description import describe
from pipeline.network.net import Net
from pipeline.settings import CompilationSettings
from pipeline.trt import Log, new_network, trt

FAMILIES = [importlib.import_module(f"pipeline.impl.{m.name}") for m in pkgutil.iter_modules(impl.__path__)]


def network() -> tuple[ConversionContext, Any, Any]:
    """A conversion and an input of its network; the builder, which must be kept."""
    log = Log()
    builder = trt.Builder(log)
    ctx = ConversionContext(new_network(builder), CompilationSettings(), log)
    return ctx, ctx.net.add_input("x", trt.float32, (2, 3)), builder


def test_a_context_and_a_name_are_as_good_as_a_net() -> None:
    printed = []
    for named in (False, True):
        ctx, x, _builder = network()
        where = (ctx, "it") if named else (Net(ctx, "it"),)
        half = base.cast(*where, x, torch.float16)
        total = elementwise.add(*where, "SUM", half, 2)  # type: ignore[call-overload]
        assert base.known_sizes(*where[:1], total) == [2, 3]
        base.tensor(*where, 3.0, rank=2)
        printed.append(str(describe(ctx.net, name="it", weight_name=ctx.weights.get)))
    assert printed[0] == printed[1]
    assert "it:cast" in printed[0] and "it:elementwise" in printed[0]


def test_the_name_may_be_given_by_keyword() -> None:
    ctx, x, _builder = network()
    base.cast(ctx, name="it", x=x, dtype=torch.float16)  # type: ignore[call-overload]
    assert [ctx.net.get_layer(0).name] == ["it:cast"]


def test_layers_of_a_derived_name_are_told_apart() -> None:
    ctx, x, _builder = network()
    net = Net(ctx, "it")
    for where in (net, net, net.at("inner")):
        where.add("identity", x)
    assert [ctx.net.get_layer(i).name for i in range(3)] == ["it:identity", "it:identity.1", "it/inner:identity"]


def test_what_tensorrt_refuses_is_an_error() -> None:
    ctx, _, _builder = network()
    with pytest.raises(NetworkError, match="TensorRT refused the layer concatenation"):
        Net(ctx, "it").add("concatenation", [])


def test_a_node_is_asked_for_only_while_one_is_converted() -> None:
    ctx, _, _builder = network()
    with pytest.raises(AssertionError, match="no node is being converted"):
        assert Net(ctx, "it").node


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_every_public_function_of_a_net_can_be_called_so(family: ModuleType) -> None:
    for name, function in vars(family).items():
        own = inspect.isfunction(function) and function.__module__ == family.__name__ and not name.startswith("_")
        if own and next(iter(inspect.signature(function).parameters), "") == "net":
            assert hasattr(function, "__wrapped__"), f"{name} needs @block, or @network_query if it adds no layer"
