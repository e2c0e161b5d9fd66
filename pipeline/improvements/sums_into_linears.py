"""sums_into_linears: add what a linear layer's result is added to in the layer, for engines of one row."""

from __future__ import annotations

from pipeline.aten.arguments import argument
from pipeline.aten.rows import LINEAR_ONTO
from pipeline.aten.types import Argument
from pipeline.impl.elementwise import HALVES
from pipeline.improvements.rewriting import (
    Node,
    Rewriting,
    alike,
    aten,
    dtype_of,
    improvement,
    is_copy,
    only_reader,
    orders,
    rank_of,
    source_of,
)


@improvement
def sums_into_linears(rewriting: Rewriting) -> None:
    """Let a linear layer in halves whose result is only added to a tensor of its shape add it. What it is added to has
    a last dim of 1 there: as the network's input it can be read so."""
    for node in rewriting.nodes(aten.add.Tensor):
        if dtype_of(node) not in HALVES or argument(node, "alpha") != 1 or not rank_of(node):
            continue
        for other, result in orders(node):
            linear = _linear_of(result, node)
            if linear is not None and isinstance(other, Node) and alike(other, linear) and alike(linear, node):
                if rewriting.accepted(node) and rewriting.accepted(linear):
                    _added(rewriting, node, linear, other)
                break


def _added(rewriting: Rewriting, node: Node, linear: Node, other: Node) -> None:
    column = rewriting.create(aten.unsqueeze.default, (other, -1), {}, node)
    constants = (linear.args[1], argument(linear, "bias"))
    taken = rewriting.accepted(column) and rewriting.offer(node, LINEAR_ONTO, (linear.args[0], *constants, column))
    if not taken:
        rewriting.erase(column)


def _linear_of(result: Argument, reader: Node) -> Node | None:
    """The linear layer that an operand is the result of, or a copy of it, if nothing but the sum reads it."""
    while isinstance(result, Node) and only_reader(result) is reader:
        if result.target is aten.linear.default:
            return result
        result, reader = (source_of(result) if is_copy(result) else None), result
    return None
