"""Find the sizes of inputs that may leave loops empty beside what has elements all the same (`empty-loops`).

TensorRT-RTX computes a tensor that is broadcast in the kernel of the layer that broadcasts it, and writes it there for
others, in a loop over the larger tensor: if that has no elements in a call, nobody writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

import torch

from pipeline.quirks.parts import Part, Place
from pipeline.shapes.environment import Expr, Symbols, bounds, shape_of


def places(part: Part) -> Iterator[Place]:
    """The symbols of inputs that may leave tensors of a segment empty beside others: where nodes compute something that
    has elements all the same, for a node of which none are left, and for an output. Most ranges begin at 0 because
    nobody said more, and a call without elements leaves nothing to compute."""
    there = {node.name: node for node in part.nodes}
    names = [name for name, each in part.ranges.items() if each.min < 1 and not name.startswith("u")]
    shapes = {name: _shapes(node.meta.get("val")) for name, node in there.items()} if names else {}
    found = [name for name in names if _leaves_something(there, shapes, part.outputs, name, part.ranges)]
    if found:
        yield "may be empty", "", tuple(sorted(found))


def _shapes(value: object) -> list[tuple[Expr, ...]]:
    if isinstance(value, torch.Tensor):
        return [shape_of(value)]
    return [shape for each in value for shape in _shapes(each)] if isinstance(value, tuple | list) else []


def _leaves_something(
    nodes: Mapping[str, torch.fx.Node],
    shapes: Mapping[str, Sequence[Sequence[Expr]]],
    outputs: Set[str],
    symbol: str,
    ranges: Symbols,
) -> bool:
    """Whether a node has elements, if there are none of a symbol, and so have nodes from it to an output, and none one
    that reads it or one of these."""
    empty = {
        name
        for name, each in shapes.items()
        if each and all(any(_may_be_none(size, symbol, ranges) for size in shape) for shape in each)
    }
    leaving, read = set[str](), set[str]()
    for name, node in reversed(list(nodes.items())):
        if name in empty or not shapes[name]:
            continue
        users = {user.name for user in node.users}
        if users & (empty | read):
            read.add(name)
        if name in outputs or users & leaving:
            leaving.add(name)
        if name in read and name in leaving:
            return True
    return False


def _may_be_none(size: Expr, symbol: str, ranges: Symbols) -> bool:
    if isinstance(size, int) or all(each.name != symbol for each in size.free_symbols):
        return False
    return all(each.name in ranges for each in size.free_symbols) and bounds(size, ranges).min < 1
