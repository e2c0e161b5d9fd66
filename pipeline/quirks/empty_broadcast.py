"""Find the dynamic sizes that may leave a kernel's loop empty while other results of it are not (`empty-loops`).

TensorRT-RTX computes a broadcast tensor in the kernel that broadcasts it, and writes it for other kernels in the loop
over the larger tensor: if that is empty in a call, the tensor is never written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

import torch

from pipeline.quirks.quirk import Part, Place
from pipeline.shapes.environment import Expr, Symbols, bounds, shape_of


def places(part: Part) -> Iterator[Place]:
    """Yield the symbols of inputs that may be 0 while a node has elements that are read both by an empty node and on a
    path to an output. Most ranges begin at 0 only for lack of a stated minimum, and then usually leave nothing to
    compute."""
    nodes = {node.name: node for node in part.nodes}
    names = [name for name, each in part.ranges.items() if each.min < 1 and not name.startswith("u")]
    shapes = {name: _shapes(node.meta.get("val")) for name, node in nodes.items()} if names else {}
    found = [name for name in names if _leaves_elements(nodes, shapes, part.outputs, name, part.ranges)]
    if found:
        yield "may be empty", "", tuple(sorted(found))


def _shapes(value: object) -> list[tuple[Expr, ...]]:
    if isinstance(value, torch.Tensor):
        return [shape_of(value)]
    return [shape for each in value for shape in _shapes(each)] if isinstance(value, tuple | list) else []


def _leaves_elements(
    nodes: Mapping[str, torch.fx.Node],
    shapes: Mapping[str, Sequence[Sequence[Expr]]],
    outputs: Set[str],
    symbol: str,
    ranges: Symbols,
) -> bool:
    """Return whether, if a symbol is 0, a node has elements, as have nodes on a path from it to an output, while a node
    that depends on it is empty."""
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
