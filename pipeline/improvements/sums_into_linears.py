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
    """Let a linear layer in halves whose result is only added to a tensor of its shape, which is no constant, add it.
    That tensor has a last dim of 1 there: as the network's input it can be read so."""
    for node in rewriting.nodes(aten.add.Tensor):
        if dtype_of(node) not in HALVES or argument(node, "alpha") != 1 or not rank_of(node):
            continue
        for other, result in orders(node):
            calls = _calls(result, node)
            if not calls or not isinstance(other, Node) or other is result or rewriting.is_constant(other):
                continue
            if alike(other, calls[-1]) and alike(calls[-1], node):
                if all(map(rewriting.accepted, [node, *calls])):
                    _added(rewriting, node, calls[-1], other)
                break


def _added(rewriting: Rewriting, node: Node, linear: Node, other: Node) -> None:
    column = rewriting.create(aten.unsqueeze.default, (other, -1), {}, node)
    constants = (linear.args[1], argument(linear, "bias"))
    taken = rewriting.accepted(column) and rewriting.offer(node, LINEAR_ONTO, (linear.args[0], *constants, column))
    if not taken:
        rewriting.erase(column)


def _calls(result: Argument, reader: Node) -> list[Node]:
    """The copies of a linear layer's result that an operand is, and the layer, if nothing but the sum reads them."""
    calls: list[Node] = []
    while isinstance(result, Node) and only_reader(result) is reader:
        calls.append(result)
        if result.target is aten.linear.default:
            return calls
        result, reader = (source_of(result) if is_copy(result) else None), result
    return []
