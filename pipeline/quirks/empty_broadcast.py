"""Find dynamic sizes that may be 0: a kernel whose loop is then empty never stores a result (the bug `empty-loops`).

TensorRT-RTX computes a broadcast tensor in the kernel that broadcasts it, and stores it for other kernels inside the
loop over the larger tensor. If the larger tensor is empty in a call, the broadcast tensor is never stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch.utils._pytree import tree_leaves

from pipeline.quirks.quirk import AffectedNode, SegmentNodes
from pipeline.shapes.environment import Expr, Shape, bounds, shape_of


def find_sizes_that_may_be_zero(segment: SegmentNodes) -> Iterator[AffectedNode]:
    """Yield the symbols of dynamic sizes for which a call with size 0 would trigger the bug: a tensor that is not empty
    and affects an output is read by an operator with an empty result. Only these sizes are reported, since most ranges
    begin at 0 only because the user states no minimum."""
    names = [name for name, each in segment.ranges.items() if each.min < 1 and not name.startswith("u")]
    shapes = {node: _tensor_shapes(node) for node in segment.nodes} if names else {}
    found = [name for name in names if _leaves_unwritten(segment, shapes, name)]
    if found:
        yield "may be empty", "", tuple(sorted(found))


def _tensor_shapes(node: torch.fx.Node) -> list[Shape]:
    return [shape_of(value) for value in tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor)]


def _leaves_unwritten(segment: SegmentNodes, shapes: Mapping[torch.fx.Node, Sequence[Shape]], size_symbol: str) -> bool:
    """Return whether the bug loses a value if ``size_symbol`` is 0: both an empty result and an output of the segment
    depend on a tensor that is not empty. ``shapes``: of the tensors that each node returns."""

    def may_be_zero(size: Expr) -> bool:
        names = set() if isinstance(size, int) else {each.name for each in size.free_symbols}
        return size_symbol in names and names <= segment.ranges.keys() and bounds(size, segment.ranges).min < 1

    empty = {node for node, each in shapes.items() if each and all(any(map(may_be_zero, shape)) for shape in each)}
    leaving, read = set[torch.fx.Node](), set[torch.fx.Node]()
    for node in reversed(segment.nodes):
        if node in empty or not shapes[node]:
            continue
        users = {*node.users}
        if users & (empty | read):
            read.add(node)
        if node.name in segment.outputs or users & leaving:
            leaving.add(node)
        if node in read and node in leaving:
            return True
    return False
