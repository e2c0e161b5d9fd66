"""Define the decorator ``converts``: it declares a function of a ``Net`` and an operator's arguments as a converter.
Helpers read the dtype of a node's result from its fake tensor, and cast results to this dtype.

The module also exports what modules of converters need beside it, such as `Rejection` and `argument`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeAlias

import torch

from pipeline.aten.arguments import argument as argument
from pipeline.aten.arguments import argument_names, bind
from pipeline.aten.support import Rejection as Rejection
from pipeline.aten.support import Target, Validator
from pipeline.aten.types import aten as aten
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, Value
from pipeline.network.context import ConversionContext
from pipeline.recipes import qualified_name
from pipeline.settings import CompilationSettings as CompilationSettings

Converter: TypeAlias = Callable[..., Any]
Places: TypeAlias = tuple[Sequence[tuple[str, int]], bool]
"""(Name, index among the operator's arguments) of each parameter; and whether the function takes all arguments."""


def converts(
    *targets: Target | Mapping[Any, Any], validator: Validator | None = None, requires_output_allocator: bool = False
) -> Callable[[Converter], Converter]:
    """Declare a function as the converter of these operators, for static and dynamic shapes.

        @converts(aten.permute.default)
        def permute(net: Net, input: Value, dims: Sequence[int]) -> ITensor:
            return base.permute(net, base.tensor(net, input), dims)

    The function receives the operator's arguments, with defaults filled in, by their names in the schema (`self` as
    `input`): those for which it has parameters, or all as `*operands`. A parameter that is not in the schema needs a
    default. Operators that share a function can be given as a mapping to values: the function receives its operator's
    value after the `Net`. The declared and returned function is called with `(ctx, target, args, kwargs, name)`.

    Args:
        targets: operators, Python functions such as `operator.getitem`, or mappings from those to values.
        validator: `(node, settings) -> bool | Rejection`; None accepts every node.
        requires_output_allocator: whether the shape of a result depends on data.

    Raises:
        TypeError: a parameter's name is not that of an argument of an operator.
    """
    rows: dict[Any, tuple[Any, ...]] = {}
    for given in targets:
        rows |= {t: (row,) for t, row in given.items()} if isinstance(given, Mapping) else {given: ()}

    def declare(function: Converter) -> Converter:
        convert = _adapt_signature(function, rows)
        for target in rows:
            dynamo_tensorrt_converter(
                target,
                capability_validator=validator,
                supports_dynamic_shapes=True,
                requires_output_allocator=requires_output_allocator,
            )(convert)
        return convert

    return declare


def _adapt_signature(function: Converter, rows: Mapping[Any, tuple[Any, ...]]) -> Converter:
    """Convert a function with named arguments to a converter, which is called with `(ctx, target, args, kwargs, name)`.
    The function receives a `Net`, the values ``rows[target]``, and the operator's arguments by name."""
    known = {target: _argument_positions(function, target, len(row)) for target, row in rows.items()}

    @wraps(function)
    def convert(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
        row = rows.get(target, ())
        places, takes_all = known[target] if target in known else _argument_positions(function, target, len(row))
        values = bind(target, args, kwargs) if places or takes_all else []
        more = values if takes_all else ()
        return function(Net(ctx, name), *row, *more, **{key: values[place] for key, place in places})

    return convert


def _argument_positions(function: Converter, target: Any, row_length: int) -> Places:
    """Return `Places` for the parameters after `Net` and the ``row_length`` parameters that a table's row fills."""
    parameters = list(inspect.signature(function).parameters.values())
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return (), True
    wanted = parameters[1 + row_length :]
    names = argument_names(target) if wanted else ()
    unknown = [p.name for p in wanted if p.name not in names and p.default is p.empty]
    if unknown:
        has = ", ".join(names) or "none"
        raise TypeError(
            f"{function.__qualname__} takes {', '.join(unknown)}, which {qualified_name(target)} does not have "
            f"among its arguments ({has}): name the parameter like one of these, or give it a default"
        )
    return tuple((p.name, names.index(p.name)) for p in wanted if p.name in names), False


def fake_result(net: Net) -> torch.Tensor:
    """Return the fake tensor of the current node's result; of the first result if there are several."""
    value = net.node.meta["val"]
    first: torch.Tensor = value if isinstance(value, torch.Tensor) else value[0]
    return first


def cast_to_result(net: Net, x: ITensor) -> ITensor:
    """Cast a tensor to the dtype of the current node's result; values outside of uint8 wrap around."""
    dtype = fake_result(net).dtype
    return base.to_uint8(net, x) if dtype == torch.uint8 else base.cast(net, x, dtype)


def rows_by_operator(table: Mapping[tuple[Any, ...], Iterable[Target]]) -> dict[Target, tuple[Any, ...]]:
    """Return the key under which the table lists each operator: {(f, "MAX"): [op]} becomes {op: (f, "MAX")}."""
    return {target: row for row, targets in table.items() for target in targets}


def call_block(net: Net, block_and_arguments: Sequence[Any], operands: Sequence[Value]) -> ITensor:
    """Return ``block(net, *arguments, *operands)``, a building block's result, in the result dtype of `net.node`."""
    block, *operation = block_and_arguments
    return cast_to_result(net, block(net, *operation, *operands))
