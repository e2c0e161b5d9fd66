"""Find the dynamic sizes that may leave a kernel's loop empty while other results of it are not (`empty-loops`).

TensorRT-RTX computes a broadcast tensor in the kernel that broadcasts it, and writes it for other kernels in the loop
over the larger tensor: if that is empty in a call, the tensor is never written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch.utils._pytree import tree_leaves

from pipeline.quirks.quirk import Part, Place
from pipeline.shapes.environment import Expr, Shape, bounds, shape_of


def places(part: Part) -> Iterator[Place]:
    """Yield the symbols of inputs that may be 0 while a node has elements that are read both by an empty node and on a
    path to an output. Most ranges begin at 0 only for lack of a stated minimum, and then usually leave nothing to
    compute."""
    names = [name for name, each in part.ranges.items() if each.min < 1 and not name.startswith("u")]
    shapes = {node: _shapes(node) for node in part.nodes} if names else {}
    found = [name for name in names if _leaves_elements(part, shapes, name)]
    if found:
        yield "may be empty", "", tuple(sorted(found))


def _shapes(node: torch.fx.Node) -> list[Shape]:
    return [shape_of(value) for value in tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor)]


def _leaves_elements(part: Part, shapes: Mapping[torch.fx.Node, Sequence[Shape]], symbol: str) -> bool:
    """Return whether, if a symbol is 0, a node has elements, as have nodes on a path from it to an output, while a node
    that depends on it is empty."""

    def may_be_none(size: Expr) -> bool:
        names = set() if isinstance(size, int) else {each.name for each in size.free_symbols}
        return symbol in names and names <= part.ranges.keys() and bounds(size, part.ranges).min < 1

    empty = {node for node, each in shapes.items() if each and all(any(map(may_be_none, shape)) for shape in each)}
    leaving, read = set[torch.fx.Node](), set[torch.fx.Node]()
    for node in reversed(part.nodes):
        if node in empty or not shapes[node]:
            continue
        users = {*node.users}
        if users & (empty | read):
            read.add(node)
        if node.name in part.outputs or users & leaving:
            leaving.add(node)
        if node in read and node in leaving:
            return True
    return False
