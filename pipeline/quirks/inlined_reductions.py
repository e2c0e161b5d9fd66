"""Find the sums of few elements that a kernel must not have in its own expression (`sums-of-few`).

TensorRT-RTX writes a reduction of few elements, a product over few, and a softmax or normalization of few into the
kernel that reads it, element by element. Where that kernel is one of a reduction, 1.4 to 1.7.1 compute each such
element once, and take it for others: ``x.softmax(1).mean(2)`` of [5, 4, 20] is off by
0.15 of the largest value, and ``(t[:, None] - t).abs().sum(-1)`` of ``t = x.sum(-1)`` for ``x`` of [20, 3] is 0. A
layer that repeats elements before is right here, and a value that another kernel has computed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence

import torch

from pipeline.aten.arguments import argument, names_of
from pipeline.aten.traits import Does, does
from pipeline.quirks.expression_blowup import FEW, can_be_summed, summed
from pipeline.quirks.parts import Part, Place
from pipeline.quirks.reduction_fusion import MOVING, broadcast_inputs, node_shape, passes, reduces
from pipeline.shapes.environment import Shape

PRODUCTS = (Does.MULTIPLIES, Does.PROJECTS)


def places(part: Part) -> Iterator[Place]:
    """The nodes that broadcast such sums to what a reduction reads, with these inputs, and those computed apart."""
    reduced, few = _reduced(part.nodes), _few(part.nodes)
    for node in part.nodes:
        if node not in reduced:
            continue
        found = few.intersection(node.all_input_nodes)
        if found and (names := tuple(x.name for x in broadcast_inputs(node) if x in found)):
            yield "expanded", node.name, names
        if _reads_elsewhere(node) and can_be_summed(node):
            yield "apart", node.name, ()


def _few(nodes: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """The values that are sums of few elements, or expressions of them."""
    found = set[torch.fx.Node]()
    for node in nodes:
        if summed(node) is not None or (_is_expression(node) and found.intersection(node.all_input_nodes)):
            found.add(node)
    return found


def _reduced(nodes: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
    """The values that a reduction reads, or an expression that it reads."""
    found = set[torch.fx.Node]()
    for node in reversed(nodes):
        if any(_is_reduction(user) or (_is_expression(user) and user in found) for user in node.users):
            found.add(node)
    return found


def _reads_elsewhere(node: torch.fx.Node) -> bool:
    """Whether an operator's expression may have the elements of a sum of few, and each of these by itself as well."""
    if node.target is operator.getitem:
        return bool(node.args[1] == 0) and _normalized(node.all_input_nodes[0])
    kind = does(node.target)
    return _normalized(node) or (kind in (*PRODUCTS, Does.NORMALIZES, Does.SOFTENS) and summed(node) is not None)


def _normalized(node: torch.fx.Node) -> bool:
    """Whether an operator is a norm of few elements: over the last dims, or over those of a group of channels."""
    if does(node.target) not in (Does.NORMALIZES, Does.SCALES) or not reduces(node):
        return False
    names = names_of(node.target)
    if "normalized_shape" in names:
        sizes: Shape = tuple(argument(node, "normalized_shape"))
        return all(isinstance(size, int) for size in sizes) and math.prod(sizes) <= FEW
    if "dim" in names:  # a log_softmax: `summed` counts its elements
        return False
    of = next((name for name in ("num_groups", "group") if name in names), None)
    _, channels, *spatial = node_shape(node.all_input_nodes[0]) or (0, 0)
    if not all(isinstance(size, int) for size in (channels, *spatial)):
        return False
    return math.prod(spatial) * channels <= FEW * (channels if of is None else argument(node, of))


def _is_reduction(node: torch.fx.Node) -> bool:
    """Whether an operator reduces, or finds the largest of its elements."""
    return reduces(node) or does(node.target) is Does.PLACES


def _is_expression(node: torch.fx.Node) -> bool:
    """Whether an operator may be in the expressions of other kernels."""
    return passes(node) or does(node.target) in MOVING
