"""Support, counted over a graph and tabled over a registry."""

import operator
from typing import Any

import pytest
import torch

from pipeline.converters.registry import ConverterRegistry, dynamo_tensorrt_converter
from pipeline.converters.support import SupportRow, get_graph_converter_support, support_table
from pipeline.settings import CompilationSettings

aten = torch.ops.aten


def at_most_four(node: torch.fx.Node, settings: CompilationSettings) -> bool:
    """k is at most | four."""
    return True


@dynamo_tensorrt_converter(aten.relu.default, capability_validator=at_most_four, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(operator.getitem, requires_output_allocator=True)
def convert(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> None: ...


REGISTRY = ConverterRegistry().register(convert)


def test_a_graph_is_counted() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu().relu() + 1

    module = torch.export.export(Model(), (torch.ones(3),)).module()
    assert get_graph_converter_support(module, registry=REGISTRY) == (2, 3)
    assert get_graph_converter_support(module, {"aten.relu.default"}, registry=REGISTRY) == (0, 3)
    assert get_graph_converter_support(module, frozenset(), registry=ConverterRegistry()) == (0, 3)


def test_all_converters_are_the_default() -> None:
    empty = torch.fx.GraphModule({}, torch.fx.Graph())
    assert get_graph_converter_support(empty) == (0, 0)


def test_the_table_has_what_was_declared() -> None:
    relu, getitem = support_table(REGISTRY)
    name = f"{__name__}.convert"
    limits = ("k is at most | four.",)
    assert relu == SupportRow("aten.relu.default", (name,), True, False, limits, str(aten.relu.default._schema))
    assert getitem == SupportRow("operator.getitem", (name,), False, True, (), "")
    assert support_table(REGISTRY.bind(CompilationSettings())) == (relu, getitem)


def test_bad_entries_are_named() -> None:
    with pytest.raises(TypeError, match="torch_executed_ops"):
        get_graph_converter_support(torch.fx.GraphModule({}, torch.fx.Graph()), {3}, registry=REGISTRY)  # type: ignore[arg-type]
