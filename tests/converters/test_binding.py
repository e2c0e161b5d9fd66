"""``converts``: arguments by their names, defaults, rows; what is declared has the public signature."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

import pipeline
from pipeline.aten.arguments import argument_names
from pipeline.converters import converter_modules
from pipeline.converters.binding import converts
from pipeline.converters.declare import declarations_of
from pipeline.network.context import ConversionContext
from pipeline.network.net import Net
from pipeline.settings import CompilationSettings
from pipeline.trt import Log

aten = torch.ops.aten
CTX = ConversionContext(None, CompilationSettings(), Log())


def call(converter: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    """A converter called as users' converters are."""
    return converter(CTX, target, args, kwargs, "here")


def test_arguments_are_bound_by_their_names_with_defaults_and_self_is_input() -> None:
    @converts(aten.addmm.default)
    def addmm(net: Net, alpha: float, input: Any, mat2: Any) -> Any:
        return net, input, mat2, alpha

    assert call(addmm, aten.addmm.default, 1, 2, 3) == (Net(CTX, "here"), 1, 3, 1)
    assert call(addmm, aten.addmm.default, 1, mat1=2, mat2=3, alpha=4) == (Net(CTX, "here"), 1, 3, 4)


def test_a_parameter_that_a_schema_lacks_keeps_its_default() -> None:
    @converts(aten.sum.default, aten.sum.dim_IntList)
    def total(net: Net, input: Any, dim: Any = "all", keepdim: bool = False) -> Any:
        return input, dim, keepdim

    assert call(total, aten.sum.default, 5) == (5, "all", False)
    assert call(total, aten.sum.dim_IntList, 5, [1], True) == (5, [1], True)


def test_a_mapping_gives_each_operator_its_row() -> None:
    @converts({aten.exp.default: ("EXP", 1), aten.add.Tensor: ("SUM", 2)}, aten.pow.Scalar)
    def row(net: Net, *given: Any) -> Any:
        return given

    assert call(row, aten.exp.default, 5) == (("EXP", 1), 5)
    assert call(row, aten.add.Tensor, 5, 6) == (("SUM", 2), 5, 6, 1)
    assert call(row, aten.pow.Scalar, 5, 6) == (5, 6)


def test_python_functions_are_bound_by_their_own_parameters() -> None:
    @converts(operator.getitem)
    def getitem(net: Net, a: Any, b: int) -> Any:
        return a[b]

    assert call(getitem, operator.getitem, "xyz", 1) == "y"


def test_an_operator_of_the_same_schema_may_be_converted_by_ours() -> None:
    @converts(aten.relu.default)
    def first(net: Net, input: Any) -> Any:
        return input

    assert call(first, aten.sigmoid.default, 5) == 5


def test_a_name_that_the_schema_has_not_is_an_error_where_it_is_declared() -> None:
    with pytest.raises(TypeError, match=r"takes diagonal, which aten\.relu\.default does not have .*\(input\)"):

        @converts(aten.relu.default)
        def relu(net: Net, input: Any, diagonal: int) -> Any:
            return input


def test_an_argument_that_is_missing_is_named() -> None:
    @converts(aten.mm.default)
    def product(net: Net, input: Any, mat2: Any) -> Any:
        return input

    with pytest.raises(TypeError, match="lacks its required argument mat2"):
        call(product, aten.mm.default, 1)


def test_what_is_declared_goes_by_the_functions_own_name_and_docstring() -> None:
    @converts(aten.relu.default, validator=lambda node, settings: True, requires_output_allocator=True)
    def relu(net: Net, input: Any) -> Any:
        """relu(Tensor self) -> Tensor"""

    (declaration,) = declarations_of(relu)
    assert declaration.support.name == f"{__name__}.{relu.__qualname__.replace('.<locals>', '')}"
    assert relu.__doc__ == "relu(Tensor self) -> Tensor"
    assert declaration.support.supports_dynamic_shapes and declaration.support.requires_output_allocator
    assert declaration.support.capability_validator is not None


def test_every_converter_of_ours_is_declared_so_and_listed_where_it_is_written() -> None:
    written = {family.__name__ for family in converter_modules()}
    for declaration in pipeline.DYNAMO_CONVERTERS.declarations():
        function = declaration.support.converter_implementation
        assert function.__module__ in written
        assert declaration.support.name == f"{function.__module__}.{function.__name__}"
        assert hasattr(function, "__wrapped__") and (function.__doc__ or "").strip()


def test_without_torch_distributed_there_are_no_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    assert "pipeline.converters.collectives" not in {family.__name__ for family in converter_modules()}


def test_names_are_the_schemas() -> None:
    assert argument_names(aten.clamp.default) == ("input", "min", "max")
    assert argument_names(operator.getitem) == ("a", "b")
