"""Find values to compute in kernels of their own, so that no kernel's expression grows exponentially.
This avoids the bug `expanded-loops`.

TensorRT-RTX inlines values that a kernel reads through views, small reductions and matmuls over few elements, once for
each read. Repeating ``u[1:] + u[:-1]`` on the last result 12 times is an expression of 4,096 terms, and 20 times an
expression of a million terms. The builder needs 0.1 ms or more for each term, and gigabytes of memory.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from typing import Final

import torch

from pipeline.aten.op_predicates import is_pointwise, moves_elements
from pipeline.aten.traits import Kind, op_kind
from pipeline.quirks.quirk import AffectedNode, SegmentNodes
from pipeline.quirks.reduction_fusion import node_shape
from pipeline.shapes.environment import Expr, shape_of

HARMLESS: Final = 8192
"""The number of terms of an expression up to which an engine builds in seconds, so that no value is separated."""
LIMIT: Final = 256
"""The maximum number of terms of an expression, in an engine that has an expression with more than `HARMLESS` terms."""
FEW: Final = 6
"""The maximum number of elements of an inlined sum: sums of 7 elements have a separate kernel, and maxima of 5."""

VIEWS: Final = (Kind.REORDERS, Kind.REPEATS, Kind.SELECTS, Kind.MIXES)
DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64)

Views = frozenset[torch.fx.Node]
"""The nodes that an elementwise expression reads at positions other than the position that it computes."""


def find_values_to_separate(segment: SegmentNodes) -> Iterator[AffectedNode]:
    """Yield the nodes to compute in separate kernels, so that TensorRT does not inline them into later expressions."""
    expanded = ExpressionSizes(segment.nodes)
    return (("apart", node.name, ()) for node in segment.nodes if node in expanded)


class ExpressionSizes:
    """The number of terms of each node's expression, with inlined inputs; contains the nodes for separate kernels."""

    def __init__(self, nodes: Iterable[torch.fx.Node]) -> None:
        self._terms: dict[torch.fx.Node, int] = {}
        self._views: dict[torch.fx.Node, Views] = {}
        self._apart: set[torch.fx.Node] = set()
        nodes = list(nodes)
        self._last = {given: node for node in nodes for given in node.all_input_nodes}
        if any(self._expression_terms(node) > HARMLESS for node in nodes):
            for node in nodes:
                if self._expression_terms(node) > LIMIT and can_have_own_kernel(node):
                    self._apart.add(node)
                    self._terms[node], self._views[node] = 1, frozenset()

    def __contains__(self, node: object) -> bool:
        return node in self._apart

    def _expression_terms(self, node: torch.fx.Node) -> int:
        """Count the terms of a node's expression, with inlined inputs; forget the inputs that no later node reads."""
        self._terms[node] = self._count_terms(node)
        for given in node.all_input_nodes:
            if self._last[given] is node:
                self._views.pop(given, None)
        return self._terms[node]

    def _count_terms(self, node: torch.fx.Node) -> int:
        """Return the number of terms of a node's expression, into which TensorRT inlines the node's inputs."""
        given = node.all_input_nodes
        if is_pointwise(node) or (moves_elements(node) and given and node_shape(given[0]) == node_shape(node)):
            seen = [self._nodes_at_other_positions(x, node) for x in given]
            most = max(seen, key=len, default=frozenset[torch.fx.Node]())
            others = frozenset[torch.fx.Node]().union(*(views for views in seen if views is not most)) - most
            self._views[node] = views = most | others if others else most
            return 1 + sum(self._terms.get(x, 1) for x in views)
        within = sum(self._terms.get(x, 1) for x in given)
        selects = op_kind(node.target) in VIEWS and isinstance(node.args[0], torch.fx.Node)  # joins have own kernels
        if node.target is operator.getitem or moves_elements(node) or selects:
            self._views[node] = frozenset((node,))
            return within
        return within * few if (few := inlined_sum_length(node)) is not None else 1

    def _nodes_at_other_positions(self, operand: torch.fx.Node, node: torch.fx.Node) -> Views:
        """Return the nodes that an elementwise ``node`` reads through ``operand`` at other indices than it computes."""
        is_place_for_place = operand in self._views and node_shape(operand) == node_shape(node)
        return self._views[operand] if is_place_for_place else frozenset((operand,))


def inlined_sum_length(node: torch.fx.Node) -> int | None:
    """Return how many elements a node adds up for each result, if so few that TensorRT inlines the sums; else None."""
    kind, sizes = op_kind(node.target), [shape for x in node.all_input_nodes if (shape := node_shape(x)) is not None]
    if kind in (Kind.MULTIPLIES, Kind.PROJECTS) and sizes:
        return _product_if_small(sizes[0][-1:])
    if kind is Kind.REDUCES and sizes:
        value = node.meta["val"]
        results = math.prod(shape_of(value[0] if isinstance(value, tuple | list) else value))
        total = math.prod(sizes[0])
        is_known = isinstance(total, int) and isinstance(results, int) and results
        return _product_if_small([total // results]) if is_known else _reduced_length_if_small(node)
    if (kind is Kind.SOFTENS or "log_softmax" in str(node.target)) and sizes:
        few = _reduced_length_if_small(node)
        return None if few is None else few * few
    return None


def _reduced_length_if_small(node: torch.fx.Node) -> int | None:
    """Return how many elements a node reduces over ``dim``, its second argument; None if above `FEW` or dynamic."""
    shape, dims = node_shape(node.all_input_nodes[0]), node.args[1] if len(node.args) > 1 else None
    dims = [dims] if isinstance(dims, int) else dims
    if not shape or not isinstance(dims, list) or not set(dims) <= {*range(-len(shape), len(shape))}:
        return None  # a histogram's second argument is not dims
    return _product_if_small([shape[d] for d in dims] or shape)


def _product_if_small(sizes: Iterable[Expr]) -> int | None:
    """Return the product of sizes; None if it is dynamic, 0 or greater than `FEW`."""
    total: Expr = math.prod(sizes)
    return total if isinstance(total, int) and 0 < total <= FEW else None


def can_have_own_kernel(node: torch.fx.Node) -> bool:
    """Return whether the compiler can put a node into a separate kernel: a tensor of a supported dtype and rank."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in DTYPES and value.dim() < 8
