"""Assemble segments from groups of operators: determine their inputs, outputs, copied constants and cuts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias, get_args

import torch
from attrs import define, field

from pipeline.aten.graphs import results_of
from pipeline.errors import Fallback, source_line
from pipeline.partitioning.flow import (
    Node,
    copied_nodes,
    float_symbols,
    introduced_symbols,
    item_symbols,
    operands,
    producer_of,
    sizes_of,
    symbols_of,
)
from pipeline.program import Cut, Partitioned, Port, Segment, Validated, is_operator, make_port
from pipeline.recipes import qualified_name
from pipeline.shapes.environment import bounds, engine_operands, is_host_int

Kind: TypeAlias = Literal["engine", "torch"]
Group: TypeAlias = tuple[Kind, Sequence[str]]

ONLY_TORCH = "only operators that run in PyTorch read it"


def assemble(validated: Validated, groups: Iterable[Group], reasons: Mapping[str, str]) -> Partitioned:
    """Build segments from groups of operators: the last step of a partitioner.

    Args:
        validated: the partitioner's input.
        groups: for each segment its kind and the names of its operators, in an order in which the segments can run.
            Every operator is in exactly one group. Operators that depend only on constants and sizes may be left out:
            they are copied to each segment that reads them.
        reasons: by operator name, why the operator runs outside engines.

    Raises:
        ValueError: an operator is in no group or in two groups, is in an engine that cannot run it, or runs before an
            operator whose result it reads; the message names it. Also raised for a reason of something that is not an
            operator, and for an unknown kind.
    """
    return _SegmentAssembler(validated, [(kind, list(names)) for kind, names in groups], dict(reasons)).build()


@define(eq=False)
class _SegmentDraft:
    """A segment under construction: its nodes, and what they read from other segments."""

    kind: Kind
    nodes: list[Node]
    new_symbols: frozenset[str] = frozenset()
    tensors: list[Node] = field(factory=list)
    sizes: list[Node] = field(factory=list)
    constants: list[str] = field(factory=list)


class _SegmentAssembler:
    def __init__(self, validated: Validated, groups: list[tuple[Kind, list[str]]], reasons: dict[str, str]) -> None:
        self.validated, self.program, self.reasons = validated, validated.program, reasons
        self.position = {n: i for i, n in enumerate(self.program.graph.nodes)}
        self.nodes_by_name = {n.name: n for n in self.position}
        self.returned = [n for n in results_of(self.program.graph) if isinstance(n, Node)]
        if unknown := [name for name in reasons if name not in self.nodes_by_name]:
            raise ValueError(
                f"reasons has a reason for {unknown[0]}, which is not an operator of the program: correct its name"
            )
        self.ports: dict[Node, Port] = {}
        self.group_of: dict[Node, int] = {}
        groups = [group for group in groups if group[1]]
        for at, (kind, names) in enumerate(groups):
            if kind not in get_args(Kind):
                raise ValueError(f"the kind of a segment must be 'engine' or 'torch', got {kind!r}")
            for name in names:
                self._assign_to_segment(name, at)
        self.copied = copied_nodes(self.program, lambda n: validated.verdicts[n.name].supported) - self.group_of.keys()
        self.parts = [_SegmentDraft(kind, self._ordered_nodes(names)) for kind, names in groups]
        self._add_output_nodes()

    def build(self) -> Partitioned:
        """Check the groups of operators, and return the segments with their inputs, outputs, cuts and fallbacks."""
        self._check_groups()
        done: set[Node] = set()
        for part in self.parts:
            self._collect_inputs(part)
            for node in part.tensors:
                if node.op == "call_function" and node not in done:
                    raise ValueError(
                        f"the segment of {part.nodes[0].name} would run before {node.name}, whose result it reads: "
                        "reorder or split the groups"
                    )
            done |= set(part.nodes)
        segments = tuple(self._segments())
        fallbacks = tuple(self._fallbacks())
        return Partitioned(self.program, segments, self.validated.verdicts, fallbacks, tuple(cuts(segments)))

    def _assign_to_segment(self, name: str, segment: int) -> None:
        """Record which segment, by index, runs an operator; raise `ValueError` if another segment does already."""
        node = self.nodes_by_name.get(name)
        if node is None or not is_operator(node):
            raise ValueError(f"a group has {name}, which is not an operator of the program: correct its name")
        if node in self.group_of:
            raise ValueError(f"the operator {name} is in two segments, but must be in one: remove it from a group")
        self.group_of[node] = segment

    def _ordered_nodes(self, names: list[str]) -> list[Node]:
        """Return a segment's nodes in graph order: its operators, items of their results, and nodes copied into it."""
        inside = {self.nodes_by_name[name]: None for name in names}
        waiting = list(inside)
        while waiting:
            node = waiting.pop()
            found = [n for n in map(producer_of, operands(node)) if n in self.copied and n not in inside]
            inside |= dict.fromkeys(found)
            waiting += found
        for node in list(inside):
            inside |= dict.fromkeys(_result_items(node))
        return sorted(inside, key=self.position.__getitem__)

    def _add_output_nodes(self) -> None:
        """Put nodes that no segment has, since only outputs read them, such as an ``arange``, into the last engine."""
        housed = {n for part in self.parts for n in part.nodes}
        rest = [n.name for n in self.position if n in self.copied and n not in housed]
        if not rest:
            return
        if not self.parts:
            self.parts.append(_SegmentDraft("engine", []))
        part = next((p for p in reversed(self.parts) if p.kind == "engine"), self.parts[-1])
        part.nodes = self._ordered_nodes([*(n.name for n in part.nodes if is_operator(n)), *rest])

    def _check_groups(self) -> None:
        """Raise `ValueError` if an operator is in no segment, or is in an engine that cannot run it."""
        for node in self.position:
            if is_operator(node) and node not in self.group_of and node not in self.copied:
                raise ValueError(f"the operator {node.name} is in no segment, but must be in one: add it to a group")
        for part in self.parts:
            for node in part.nodes:
                if part.kind == "engine" and not self.validated.verdicts[node.name].supported:
                    raise ValueError(
                        f"the operator {node.name} is in an engine segment, but an engine cannot run it: "
                        "put it into a group of kind 'torch'"
                    )

    def _collect_inputs(self, part: _SegmentDraft) -> None:
        """Record the tensors, sizes and constants that a segment reads from outside. A size that depends on a symbol
        which the segment introduces is not an input: the segment computes it."""
        inside = set(part.nodes)
        part.new_symbols = frozenset(s for n in part.nodes for s in introduced_symbols(n))
        seen: dict[Node, None] = {}
        waiting = [source for node in part.nodes for source in operands(node)][::-1]
        while waiting:
            source = waiting.pop()
            if source in inside or source in seen:
                continue
            if isinstance(source.meta.get("val"), torch.SymInt) and symbols_of(source) & part.new_symbols:
                inside.add(source)
                waiting += [*operands(source)][::-1]
            else:
                seen[source] = None
        for node in seen:
            if node.name in self.program.constants:
                part.constants.append(node.name)
            elif isinstance(node.meta.get("val"), torch.SymInt):
                part.sizes.append(node)
            else:
                part.tensors.append(node)

    def _segments(self) -> Iterator[Segment]:
        """Yield the final segments, in the order in which they run, with their inputs, outputs and constants."""
        needed = {n for part in self.parts for n in part.tensors} | set(self.returned)
        given: set[Node] = set()
        for at, part in enumerate(self.parts):
            outputs = [n for n in part.nodes if n in needed and n not in given and _is_tensor_or_size(n)]
            outputs += self._nodes_for_sizes(part, outputs, self.parts[at + 1 :])
            given |= set(outputs)
            yield Segment(
                name=f"{part.kind}_{at}",
                kind=part.kind,
                nodes=tuple(n.name for n in part.nodes),
                inputs=tuple(self._input_ports(part)),
                outputs=tuple(map(self._port_of, outputs)),
                constants=tuple(part.constants),
            )

    def _nodes_for_sizes(self, part: _SegmentDraft, outputs: list[Node], later: list[_SegmentDraft]) -> Iterator[Node]:
        """Yield nodes that a segment returns only for their sizes, which later segments need and cannot compute."""
        wanted = {s for n in self.returned for s in symbols_of(n) | float_symbols(n)}
        wanted |= {s for p in later for n in (*p.nodes, *p.sizes) for s in symbols_of(n)} if part.new_symbols else set()
        wanted = (wanted & part.new_symbols) - _readable_symbols(map(self._port_of, outputs))
        for node in part.nodes:
            if wanted and (_is_tensor_or_size(node) or item_symbols(node)):
                readable = _readable_symbols([self._port_of(node)])
                if not wanted.isdisjoint(readable):
                    wanted -= readable
                    yield node

    def _input_ports(self, part: _SegmentDraft) -> Iterator[Port]:
        tensors = list(map(self._port_of, part.tensors))
        yield from tensors
        if part.kind == "torch":
            yield from map(self._port_of, part.sizes)
            return
        read = dict.fromkeys(n for node in part.nodes for n in node.all_input_nodes)
        yield from (self._port_of(n) for n in read if isinstance(n.meta.get("val"), torch.SymFloat))
        known = _readable_symbols(tensors) | part.new_symbols
        for node in (*part.nodes, *part.sizes):
            for leaf in sorted({leaf for size in sizes_of(node) for leaf in engine_operands(size)}, key=str):
                if str(leaf) not in known:
                    known |= {str(leaf)}
                    yield Port(str(leaf), torch.int64, (), (bounds(leaf, self.program.shapes),), "symint", leaf)

    def _port_of(self, node: Node) -> Port:
        """Return the `Port` that describes a node's value (name, dtype, shape) as an input or output of a segment."""
        if node not in self.ports:
            self.ports[node] = make_port(node.name, node.meta["val"], self.program.shapes)
        return self.ports[node]

    def _fallbacks(self) -> Iterator[Fallback]:
        """Yield a `Fallback`, with the reason, for each operator that is in no engine."""
        engines = {n for part in self.parts if part.kind == "engine" for n in part.nodes}
        for node in self.position:
            if is_operator(node) and node not in engines:
                refused = "; ".join(r.reason for r in self.validated.verdicts[node.name].reasons)
                default = ONLY_TORCH if node in self.copied else refused or "the partitioner keeps it in PyTorch"
                yield fallback_record(self.validated, node, self.reasons.get(node.name) or default)


def fallback_record(validated: Validated, node: Node, reason: str) -> Fallback:
    """Return the record that a node runs in PyTorch for this reason, with the hints of converters that refused it."""
    hint = "; ".join(dict.fromkeys(r.hint for r in validated.verdicts[node.name].reasons if r.hint))
    return Fallback(node.name, qualified_name(node.target), reason, hint, source_line(node))


def cuts(segments: Sequence[Segment]) -> Iterator[Cut]:
    """Yield the values that cross from each segment to each later segment that reads them."""
    sources: dict[str, list[Segment]] = defaultdict(list)
    for segment in segments:
        for given in segment.outputs:
            sources[given.name].append(segment)
    for segment in segments:
        crossing: dict[str, list[Port]] = defaultdict(list)
        for taken in segment.inputs:
            for source in sources.get(taken.name, ()) if taken.kind == "tensor" else ():
                if segment.profile is None or source.runs_in(segment.profile):
                    crossing[source.name].append(taken)
        yield from (Cut(name, segment.name, tuple(ports)) for name, ports in crossing.items())


def _result_items(node: Node) -> Iterator[Node]:
    """Yield the tensor items of an operator's result."""
    for user in node.users:
        if user.op == "call_function" and not is_operator(user) and isinstance(user.meta.get("val"), torch.Tensor):
            yield user
            yield from _result_items(user)


def _is_tensor_or_size(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor | torch.SymInt)


def _readable_symbols(ports: Iterable[Port]) -> frozenset[str]:
    """Return the symbols that these inputs or outputs tell: a shape [s0, 4] tells ``s0``, but [2 * s0, 4] does not."""
    sizes = [d for p in ports for d in (p.shape if p.kind == "tensor" else (p.value,))]
    return frozenset(str(d) for d in sizes if not isinstance(d, int) and (d.is_Symbol or is_host_int(d)))
