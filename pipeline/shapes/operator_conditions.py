"""Find conditions on sizes that a graph's operators assume, but that torch.export does not record."""

from __future__ import annotations

from collections.abc import Iterator

import sympy
import torch

from pipeline.aten.arguments import argument
from pipeline.aten.traits import Kind, op_kind
from pipeline.aten.types import Argument
from pipeline.shapes.environment import shape_of

aten = torch.ops.aten

SQUEEZES = (aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
"""Operators whose result has another rank if a size is 1; torch.export assumes that a dynamic size is not 1."""

WRITES = (aten.index_put.default, aten._unsafe_index_put.default)
"""Operators that write at indices, which may be bool masks."""


def operator_conditions(graph: torch.fx.Graph) -> Iterator[object]:
    """Yield conditions on sizes (sympy expressions such as ``s0 != 1``). For sizes that violate one, eager PyTorch
    raises an error, or returns a result of another rank or size than the graph's operator."""
    for find in (_conditions_of_asserts, _squeeze_conditions, _cross_conditions, _reshape_conditions):
        yield from find(graph)
    for find in (_slice_conditions, _attention_conditions, _mask_conditions):
        yield from find(graph)


def _conditions_of_asserts(graph: torch.fx.Graph) -> Iterator[object]:
    """Yield the conditions on sizes that assertions in the graph check (``aten._assert_scalar``)."""
    for node in graph.nodes:
        if node.target is aten._assert_scalar.default and isinstance(node.args[0], torch.fx.Node):
            value = node.args[0].meta.get("val")
            if isinstance(value, torch.SymBool):
                yield value.node.expr


def _reshape_conditions(graph: torch.fx.Graph) -> Iterator[sympy.Basic]:
    """Yield the condition that each reshape keeps the number of elements; a saved ExportedProgram does not have it."""
    for node in graph.nodes:
        if op_kind(node.target) is Kind.RESHAPES:
            before, after = (sympy.Mul(*shape_of(n.meta["val"])) for n in (node.args[0], node))
            if before != after:
                yield sympy.Eq(before, after, evaluate=False)


def _squeeze_conditions(graph: torch.fx.Graph) -> Iterator[object]:
    """Yield the condition that each dynamic size which a ``squeeze`` reads is not 1, as torch.export assumes."""
    for node in graph.nodes:
        if node.target in SQUEEZES:
            sizes = shape_of(node.args[0].meta["val"])
            dims = node.args[1] if len(node.args) > 1 else range(len(sizes))
            for dim in [dims] if isinstance(dims, int) else dims:
                if sizes and not isinstance(sizes[dim], int):  # a tensor without dims takes 0 and -1 as well
                    yield sympy.Ne(sizes[dim], 1, evaluate=False)


def _cross_conditions(graph: torch.fx.Graph) -> Iterator[object]:
    """Yield ``size != 3`` for the dims before the dim that ``torch.cross`` chose in the trace: the first of size 3."""
    for node in graph.nodes:
        if node.target is aten.cross.default and argument(node, "dim") is None:
            sizes = shape_of(argument(node, "self").meta["val"])
            for size in sizes[: sizes.index(3)]:
                if not isinstance(size, int):
                    yield sympy.Ne(size, 3, evaluate=False)


def _attention_conditions(graph: torch.fx.Graph) -> Iterator[object]:
    """Yield the condition that each attention has as many values as keys, which torch.export does not check."""
    for node in graph.nodes:
        if node.target is aten.scaled_dot_product_attention.default:
            keys, values = (shape_of(argument(node, name).meta["val"])[-2] for name in ("key", "value"))
            if keys != values and not (isinstance(keys, int) and isinstance(values, int)):
                yield sympy.Eq(keys, values, evaluate=False)


def _mask_conditions(graph: torch.fx.Graph) -> Iterator[object]:
    """Yield the condition that a mask in ``x[mask] = …`` has the sizes of ``x``; torch.export checks only reads."""
    for node in graph.nodes:
        if node.target in WRITES:
            sizes, dim = shape_of(argument(node, "self").meta["val"]), 0
            for index in argument(node, "indices"):
                value = None if index is None else index.meta["val"]
                mask = shape_of(value) if value is not None and value.dtype in (torch.bool, torch.uint8) else None
                for size, due in zip(mask or (), sizes[dim:], strict=False):
                    if size != due and not (isinstance(size, int) and isinstance(due, int)):
                        yield sympy.Eq(size, due, evaluate=False)
                dim += 1 if mask is None else len(mask)


def single_query_conditions(graph: torch.fx.Graph) -> Iterator[object]:
    """Yield the condition ``queries != 1 or keys == 1`` for each causal attention in the graph. For a single query,
    transformers omits ``is_causal``, which the graph keeps; the results are equal only if there is a single key."""
    for node in graph.nodes:
        if node.target is aten.scaled_dot_product_attention.default and argument(node, "is_causal"):
            queries, keys = (shape_of(argument(node, name).meta["val"])[-2] for name in ("query", "key"))
            if not isinstance(queries, int) and queries != keys:
                yield sympy.Or(sympy.Ne(queries, 1, evaluate=False), sympy.Eq(keys, 1, evaluate=False), evaluate=False)


_SLICE_DEFAULTS: tuple[Argument, ...] = (None, 0, None, None, 1)
"""The defaults of the arguments of ``aten.slice``."""


def _slice_conditions(graph: torch.fx.Graph) -> Iterator[object]:
    """Yield a minimum of each size that is sliced to a fixed size: ``s0 >= 2`` if the graph's ``x[-2:]`` has 2 rows."""
    for node in graph.nodes:
        if node.target is aten.slice.Tensor:
            given_args: tuple[Argument, ...] = node.args
            source, dim, start, _, step = (*given_args, *_SLICE_DEFAULTS[len(given_args) :])
            taken, given = shape_of(node.meta["val"])[dim], shape_of(source.meta["val"])[dim]
            if isinstance(taken, int) and taken > 0 and not isinstance(given, int) and isinstance(start, int | None):
                first = start or 0
                least = -first if first < 0 else first + (taken - 1) * step + 1
                yield sympy.Ge(given, least, evaluate=False)
