"""Find operands to expand before an elementwise layer broadcasts them (to avoid the bug `broadcast-in-reductions`).

A reduction kernel of TensorRT-RTX stores per-element values in its threads' registers for layers after the reduction.
If such a layer broadcasts a value, versions 1.4, 1.5 and 1.6.1 read the registers of threads that do not have it:
``softmax(x) * y`` of [4, 1, 8] and [4, 5, 8] returned infinities. A layer that expands is never fused into such a
kernel. Expanding also avoids the bug of small sums in a kernel's expression (`inlined_reductions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal, TypeAlias

import torch
from torch.fx.node import map_arg

from pipeline.aten.op_predicates import moves_elements
from pipeline.aten.traits import Kind, op_kind
from pipeline.aten.types import aten
from pipeline.quirks import reduction_fusion
from pipeline.quirks.quirk import AffectedNode, SegmentNodes
from pipeline.quirks.reduction_fusion import has_reduction, is_broadcast, keeps_positions, node_shape
from pipeline.shapes.environment import Shape

Role: TypeAlias = Literal["reduced", "behind"]
"""What a value is for a reduction kernel: its result (reduced), or computed from result and elements (behind)."""
SHIFTED: Final = (aten.logsumexp.default,)
"""Operators whose result is the sum of two reductions of the same elements."""


def find_operands_to_expand(segment: SegmentNodes) -> Iterator[AffectedNode]:
    """Yield the nodes that broadcast inputs which a reduction kernel may store in registers, each with these inputs."""
    held = RegisterValues(segment.nodes)
    for node in segment.nodes:
        if names := tuple(x.name for x in reduction_fusion.expandable_inputs(node) if held.in_registers(x, node)):
            yield "expanded", node.name, names


class RegisterValues:
    """The values that reduction kernels may keep in registers (`in_registers`); equal computations are one value."""

    def __init__(self, nodes: Iterable[torch.fx.Node]) -> None:
        self._first: dict[torch.fx.Node, torch.fx.Node] = {}
        self._users: dict[torch.fx.Node, list[torch.fx.Node]] = {}
        self._roles: dict[torch.fx.Node, Role | None] = {}
        self._elements: dict[torch.fx.Node, Shape | None] = {}
        self._read: set[torch.fx.Node] = set()
        nodes = list(nodes)
        self._places = {node: place for place, node in enumerate(nodes)}
        known: dict[str, torch.fx.Node] = {}
        for node in nodes:
            first = known.setdefault(self._computation_key(node), node)
            self._first[node] = first
            for given in dict.fromkeys(map(self._first_equal_node, node.all_input_nodes)):
                self._users.setdefault(given, []).append(first)
            self._roles[first] = self._reduction_role(first)
            self._elements[first] = self._shape_before_reduction(first)
        self._shifting = {node for node in self._roles if node.target in SHIFTED}
        for given in reversed(self._users):
            if any(self._leads_to_reduction(given, user) for user in self._users[given]):
                self._read.add(given)
            elif any(self._leads_to_second_reduction(given, user) for user in self._users[given]):
                self._shifting.add(given)
        self._kept = set(self._read)
        for node in self._roles:
            inputs = {self._first_equal_node(x) for x in node.all_input_nodes} if keeps_positions(node) else set()
            if self._roles[node] == "behind" or inputs & self._kept:
                self._kept.add(node)
            elif inputs & self._shifting:
                self._shifting.add(node)

    def in_registers(self, operand: torch.fx.Node, node: torch.fx.Node) -> bool:
        """Return whether a reduction kernel may keep ``operand``, which ``node`` broadcasts, in registers: one value
        for each reduced element, or a result with which it reduces the elements again, as a mean for a variance."""
        first = self._first_equal_node(operand)
        if first in self._kept:
            return True
        if first not in self._shifting or self._elements[first] == node_shape(node):
            return False
        return not any(self._depends_through_matmul(x, operand) for x in node.all_input_nodes if x is not operand)

    def _first_equal_node(self, node: torch.fx.Node) -> torch.fx.Node:
        """Return the first node of the segment that computes the same as this node, or the node itself."""
        return self._first.get(node, node)

    def _computation_key(self, node: torch.fx.Node) -> str:
        """Return a key that two nodes share if they compute the same operator of the same values."""
        if not (keeps_positions(node) or op_kind(node.target) in reduction_fusion.REDUCING):
            return node.name
        given = map_arg((node.args, dict(node.kwargs)), lambda x: f"%{self._first_equal_node(x).name}")
        return f"{node.target} {given}"

    def _reduction_role(self, node: torch.fx.Node) -> Role | None:
        """Return "reduced" for a reduction's result, "behind" for a value computed from both such a result and
        unreduced elements; else None."""
        if has_reduction(node):
            return "reduced" if op_kind(node.target) in (Kind.REDUCES, Kind.POOLS) else "behind"
        if not keeps_positions(node):
            return None
        inputs = [x for x in node.all_input_nodes if isinstance(x.meta.get("val"), torch.Tensor | tuple | list)]
        roles = {x: self._roles.get(self._first_equal_node(x)) for x in inputs}
        if "behind" in roles.values():
            return "behind"
        reduced = [x for x in inputs if roles[x] == "reduced"]
        others = len(reduced) < len(inputs) and any(is_broadcast(node_shape(x), node_shape(node)) for x in reduced)
        return "behind" if others else "reduced" if reduced else None

    def _shape_before_reduction(self, node: torch.fx.Node) -> Shape | None:
        """Return the shape of a reduction's input for its result, or for a value computed from results: [N, C] for
        ``x.sum(1)``. None for other values, or if there are several shapes."""
        if self._roles[node] != "reduced":
            return None
        if has_reduction(node):
            return node_shape(node.all_input_nodes[0])
        found = {self._elements.get(self._first_equal_node(x)) for x in node.all_input_nodes} - {None}
        return found.pop() if len(found) == 1 else None

    def _leads_to_reduction(self, node: torch.fx.Node, user: torch.fx.Node) -> bool:
        """Return whether ``user``, a reader of ``node``, is a reduction, or leads to one elementwise or by views."""
        if has_reduction(user):
            return True
        is_in_place = keeps_positions(user) and node_shape(user) == node_shape(node)
        return user in self._read and (moves_elements(user) or is_in_place)

    def _leads_to_second_reduction(self, node: torch.fx.Node, user: torch.fx.Node) -> bool:
        """Return whether ``user`` uses ``node``, a reduction of x, to reduce x again: ``(x - x.mean()).sum()``."""
        if not keeps_positions(user) or self._roles.get(node) != "reduced":
            return False
        return user in self._shifting or (user in self._read and node_shape(user) == self._elements[node])

    def _depends_through_matmul(self, node: torch.fx.Node, source: torch.fx.Node) -> bool:
        """Return whether a matmul is on a path from ``source`` to a node, so that no reduction kernel contains both."""
        waiting, seen, first = [(node, False)], set[tuple[torch.fx.Node, bool]](), self._places.get(source, -1)
        while waiting:
            each, behind = waiting.pop()
            if each is source and behind:
                return True
            behind |= op_kind(each.target) in SEPARATE and (node_shape(each.all_input_nodes[0]) or (1,))[-1] != 1
            found = {(given, behind) for given in each.all_input_nodes if self._places.get(given, -1) >= first} - seen
            seen |= found
            waiting += found
        return False


SEPARATE: Final = (Kind.MULTIPLIES, Kind.PROJECTS, Kind.CONVOLVES, Kind.ATTENDS, Kind.RECURS)
"""Operators that are never fused into a reduction kernel, except matmuls over a single element."""
