"""What a node's fake tensor says of its result; and converters of several operators, by a list or by a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from pipeline.aten.arguments import bind
from pipeline.aten.support import Target, Validator
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.impl import base
from pipeline.impl.base import ITensor
from pipeline.network.context import ConversionContext

F = TypeVar("F", bound=Callable[..., Any])


def result_of(ctx: ConversionContext) -> torch.Tensor:
    """The fake tensor of the node's result, the first if there are several."""
    assert ctx.node is not None
    value = ctx.node.meta["val"]
    first: torch.Tensor = value if isinstance(value, torch.Tensor) else value[0]
    return first


def as_result(ctx: ConversionContext, name: str, x: ITensor) -> ITensor:
    """``x`` in the dtype of the node's result; bytes wrap."""
    dtype = result_of(ctx).dtype
    return base.byte(ctx, name, x) if dtype == torch.uint8 else base.cast(ctx, name, x, dtype)


def converts(*targets: Target, validator: Validator | None = None) -> Callable[[F], F]:
    """Declares a function as the converter of each of these operators, of static and dynamic shapes."""

    def declare(function: F) -> F:
        for target in targets:
            dynamo_tensorrt_converter(target, capability_validator=validator, supports_dynamic_shapes=True)(function)
        return function

    return declare


def declared(
    target: Any,
    function: Callable[..., Any],
    *operation: Any,
    validator: Validator | None = None,
    operands: Callable[[ConversionContext, Any, list[Any], str], list[Any]] | None = None,
) -> Callable[..., Any]:
    """A converter that gives the operator's arguments, after ``operation``, to a building block, and goes by its name;
    first ``operands`` makes of them what eager computes with."""

    @dynamo_tensorrt_converter(target, capability_validator=validator, supports_dynamic_shapes=True)
    def convert(ctx: ConversionContext, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        values = bind(target, args, kwargs)
        values = values if operands is None else operands(ctx, target, values, name)
        return as_result(ctx, name, function(ctx, name, *operation, *values))

    convert.__doc__ = str(target._schema)
    convert.__module__, convert.__name__ = function.__module__, function.__name__
    convert.__qualname__ = f"<locals>.{function.__name__}"
    return convert


def declared_rows(table: Mapping[Any, tuple[Any, ...]], **options: Any) -> list[Callable[..., Any]]:
    """A converter for each row of a table: the operator, the building block, and what that is given first. The options
    are those of ``declared``."""
    return [declared(target, *row, **options) for target, row in table.items()]
