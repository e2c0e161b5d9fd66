"""Represent a program's data flow for partitioners: operators, the values between them, and the bytes of each value.

Operators are numbered in the order of the graph. Cheap nodes that depend only on constants and sizes (a range, a filled
tensor, a view of either) do not count as operators: each segment that reads them gets a copy, so they cause no cut.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import TypeAlias

import torch
from attrs import frozen
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pipeline.aten.graphs import results_of
from pipeline.aten.op_predicates import has_randomness, is_cheap, moves_elements
from pipeline.program import Program, is_operator
from pipeline.shapes.environment import Expr, as_expr, bounds, shape_of, sizes_in

Node = torch.fx.Node
Edges: TypeAlias = tuple[tuple[int, ...], ...]

MAX_COPIED = 8
"""The maximum number of operators that each segment recomputes so that their result does not cross a cut."""


@frozen
class Value:
    """A tensor between operators: its producer (None for an input of the program), its readers, and its bytes at the
    sizes that engines are tuned for."""

    node: Node
    producer: int | None
    readers: tuple[int, ...]
    nbytes: int


@frozen
class Flow:
    """The data flow between a program's operators, by number. ``before`` and ``after`` are the operators that must run
    earlier and later. ``produced`` and ``read`` index the ``values`` that an operator produces and reads. For each
    operator, ``is_returned`` is whether the program returns its result, ``is_cheap`` whether it costs little in an
    engine and in PyTorch, and ``moves_data`` whether it only moves data."""

    nodes: tuple[Node, ...]
    before: Edges
    after: Edges
    values: tuple[Value, ...]
    produced: Edges
    read: Edges
    is_returned: tuple[bool, ...]
    is_cheap: tuple[bool, ...]
    moves_data: tuple[bool, ...]


def build_flow(program: Program, excluded: frozenset[Node]) -> Flow:
    """Return the data flow of a program, without the nodes in ``excluded``."""
    nodes = [n for n in program.graph.nodes if is_operator(n) and n not in excluded]
    makes = {s: i for i, n in enumerate(nodes) for s in introduced_symbols(n)}
    readers: dict[Node, dict[int, None]] = defaultdict(dict)
    before: list[dict[int, None]] = [{} for _ in nodes]
    for i, node in enumerate(nodes):
        for source in operands(node):
            if _is_size(source):
                before[i].update((makes[s], None) for s in sorted(symbols_of(source)) if s in makes)
            elif source.name not in program.constants and producer_of(source) not in excluded:
                readers[source][i] = None
    for first, second in pairwise(i for i, node in enumerate(nodes) if has_randomness(node)):
        before[second][first] = None  # random numbers are drawn in eager's order
    values = _build_values(program, {n: i for i, n in enumerate(nodes)}, readers)
    for value in values:
        if value.producer is not None:
            for i in value.readers:
                before[i][value.producer] = None
    returned = {producer_of(n) for n in results_of(program.graph) if isinstance(n, Node)}
    return Flow(
        nodes=tuple(nodes),
        before=tuple(map(tuple, before)),
        after=_invert_edges(before, len(nodes)),
        values=values,
        produced=_invert_edges([() if value.producer is None else (value.producer,) for value in values], len(nodes)),
        read=_invert_edges([value.readers for value in values], len(nodes)),
        is_returned=tuple(n in returned for n in nodes),
        is_cheap=tuple(map(is_cheap, nodes)),
        moves_data=tuple(map(moves_elements, nodes)),
    )


def _build_values(
    program: Program, index: Mapping[Node, int], readers: Mapping[Node, Mapping[int, None]]
) -> tuple[Value, ...]:
    """Return a `Value` for each node in ``readers``, which has its readers' numbers. ``index``: operators' numbers."""

    @cache
    def opt(size: Expr) -> int:
        return bounds(size, program.shapes).opt

    def nbytes(value: object) -> int:
        if not isinstance(value, torch.Tensor):
            return 0
        return value.dtype.itemsize * math.prod(map(opt, shape_of(value)))

    return tuple(Value(n, index.get(producer_of(n)), tuple(read), nbytes(n.meta["val"])) for n, read in readers.items())


def _invert_edges(edges: Iterable[Iterable[int]], count: int) -> Edges:
    """Invert edges between numbers: return, for each number below ``count``, the numbers that have an edge to it."""
    found: list[list[int]] = [[] for _ in range(count)]
    for at, ends in enumerate(edges):
        for end in ends:
            found[end].append(at)
    return tuple(map(tuple, found))


def copied_nodes(program: Program, is_supported: Callable[[Node], bool]) -> frozenset[Node]:
    """Return the nodes that segments copy: cheap ones that engines can run, computed by few nodes from constants."""
    below: dict[Node, frozenset[Node]] = {}
    known = {s for n in program.graph.nodes if n.op == "placeholder" for s in symbols_of(n)}
    for node in program.graph.nodes:
        if not is_operator(node) or not is_supported(node) or not is_cheap(node, include_creation=True):
            continue
        tensors = [n for n in operands(node) if n.name not in program.constants and n not in below]
        sizes = {s for n in tensors if _is_size(n) for s in symbols_of(n)}
        if all(map(_is_size, tensors)) and sizes | symbols_of(node) <= known:
            cone = frozenset({node}).union(*(below[n] for n in operands(node) if n in below))
            if len(cone) <= MAX_COPIED:
                below[node] = cone
    return frozenset(below)


def operands(node: Node) -> Iterator[Node]:
    """Yield the tensors and symbolic ints that a node reads. In place of a float, yield the tensors and ints from which
    it is computed, since each segment computes its floats itself."""
    waiting = node.all_input_nodes[::-1]
    while waiting:
        source = waiting.pop()
        if isinstance(source.meta.get("val"), torch.Tensor | torch.SymInt | tuple | list):
            yield source
        else:
            waiting += source.all_input_nodes[::-1]


def producer_of(value: Node) -> Node:
    """Return the operator that computes a value: the node itself or, for an item of a result, the result's node."""
    while value.target is operator.getitem:
        value = value.all_input_nodes[0]
    return value


def symbols_of(node: Node) -> frozenset[str]:
    """Return the names of the symbols in the sizes of a node's result."""
    return frozenset(str(s) for e in sizes_of(node) if not isinstance(e, int) for s in e.free_symbols)


def sizes_of(node: Node) -> list[Expr]:
    """Return the sizes of a node's result; if the result is a size, the result itself."""
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else [value]
    return [e for v in values for e in sizes_in(v)]


def introduced_symbols(node: Node) -> frozenset[str]:
    """Return the symbols that an operator introduces: sizes and numbers that are unknown until it has run."""
    if not is_operator(node):
        return frozenset()
    made = frozenset(str(s) for e in sizes_of(node) if not isinstance(e, int) for s in free_unbacked_symbols(e))
    made |= item_symbols(node)
    return made - {s for n in node.all_input_nodes for s in symbols_of(n) | float_symbols(n)} if made else made


def item_symbols(node: Node) -> frozenset[str]:
    """Return the symbol of a float that an operator reads from a tensor (``x.item()``); empty for other values."""
    expr = as_expr(value) if isinstance(value := node.meta.get("val"), torch.SymFloat) else None
    return frozenset({str(expr)}) if expr is not None and expr.is_Symbol else frozenset()


def float_symbols(node: Node) -> frozenset[str]:
    """Return the names of the symbols in a float that Python computes from sizes; empty for other values."""
    value = node.meta.get("val")
    return frozenset(str(s) for s in as_expr(value).free_symbols) if isinstance(value, torch.SymFloat) else frozenset()


def _is_size(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt)
