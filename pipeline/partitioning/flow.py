"""Represent a program's data flow for partitioners: operators, the values between them, and the bytes of each value.

Operators are numbered in the order of the graph. Nodes that depend only on constants and sizes and are cheap (a range,
a filled tensor, a view of one) do not count as operators: they are copied to wherever they are read, so nothing is cut
for them.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise

import torch
from attrs import frozen
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pipeline.aten.graphs import results
from pipeline.aten.op_predicates import draws_random, is_cheap, moves
from pipeline.program import Program, is_operator
from pipeline.shapes.environment import Expr, bounds, expression, number, shape_of

Node = torch.fx.Node

COPIED = 8
"""The most operators that are recomputed so that their result does not cross a cut."""


@frozen
class Value:
    """A tensor between operators: its producer (None: an input of the program), its readers, and its bytes at the sizes
    that engines are tuned for."""

    node: Node
    maker: int | None
    readers: tuple[int, ...]
    nbytes: int


@frozen
class Flow:
    """Operators by number: ``before`` and ``after`` are those that must run earlier and later; ``made`` and ``read``
    index the ``values`` that an operator produces and reads. For each operator, ``leaves`` is whether the program
    returns its result, ``cheap`` whether it costs almost nothing wherever it runs, ``moves`` whether it only moves
    data."""

    nodes: tuple[Node, ...]
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    values: tuple[Value, ...]
    made: tuple[tuple[int, ...], ...]
    read: tuple[tuple[int, ...], ...]
    leaves: tuple[bool, ...]
    cheap: tuple[bool, ...]
    moves: tuple[bool, ...]


def flow(program: Program, copied: frozenset[Node]) -> Flow:
    """Return the flow of a program, without the operators in ``copied``."""
    return _Builder(program, copied).flow()


def copies(program: Program, supported: Callable[[Node], bool]) -> frozenset[Node]:
    """Return the operators to copy: cheap ones that engines can run, computed from constants and sizes by few
    others."""
    below: dict[Node, frozenset[Node]] = {}
    known = _input_symbols(program)
    for node in program.graph.nodes:
        if not is_operator(node) or not supported(node) or not is_cheap(node, sources=True):
            continue
        tensors = [n for n in operands(node) if n.name not in program.constants and n not in below]
        sizes = {s for n in tensors if _is_size(n) for s in symbols_of(n)}
        if all(map(_is_size, tensors)) and sizes | symbols_of(node) <= known:
            cone = frozenset({node}).union(*(below[n] for n in operands(node) if n in below))
            if len(cone) <= COPIED:
                below[node] = cone
    return frozenset(below)


def operands(node: Node) -> Iterator[Node]:
    """Yield the tensors and symbolic ints that a node reads. Other numbers are skipped: they are read from tensors
    again wherever they are needed."""
    waiting = node.all_input_nodes[::-1]
    while waiting:
        source = waiting.pop()
        if isinstance(source.meta.get("val"), torch.Tensor | torch.SymInt | tuple | list):
            yield source
        else:
            waiting += source.all_input_nodes[::-1]


def maker(value: Node) -> Node:
    """Return the operator whose result, or item of a result, a value is."""
    while value.target is operator.getitem:
        value = value.all_input_nodes[0]
    return value


def symbols_of(node: Node) -> frozenset[str]:
    """Return the names of the symbols in the sizes of a node's result."""
    return frozenset(str(s) for e in sizes_of(node) if not isinstance(e, int) for s in e.free_symbols)


def sizes_of(node: Node) -> list[Expr]:
    """Return the sizes of a node's result, or the result itself if it is a size."""
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else [value]
    return [e for v in values for e in _sizes(v)]


def new_symbols(node: Node) -> frozenset[str]:
    """Return the symbols that an operator introduces: sizes and numbers that are known only after it ran."""
    if not is_operator(node):
        return frozenset()
    made = frozenset(str(s) for e in sizes_of(node) if not isinstance(e, int) for s in free_unbacked_symbols(e))
    made |= told_float(node)
    return made - {s for n in node.all_input_nodes for s in symbols_of(n) | float_symbols(n)} if made else made


def told_float(node: Node) -> frozenset[str]:
    """Return the symbol of a float that an operator reads from data (``x.item()``); empty for other values."""
    expr = number(value) if isinstance(value := node.meta.get("val"), torch.SymFloat) else None
    return frozenset({str(expr)}) if expr is not None and expr.is_Symbol else frozenset()


def float_symbols(node: Node) -> frozenset[str]:
    """Return the names of the symbols in a float that Python computes; empty for other values."""
    value = node.meta.get("val")
    return frozenset(str(s) for s in number(value).free_symbols) if isinstance(value, torch.SymFloat) else frozenset()


def _sizes(value: object) -> Iterable[Expr]:
    if isinstance(value, torch.Tensor):
        return shape_of(value)
    return [expression(value)] if isinstance(value, torch.SymInt) else []


def _is_size(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt)


def _input_symbols(program: Program) -> frozenset[str]:
    """Return the symbols that the program's inputs determine."""
    return frozenset(s for n in program.graph.nodes if n.op == "placeholder" for s in symbols_of(n))


class _Builder:
    def __init__(self, program: Program, copied: frozenset[Node]) -> None:
        self.program, self.copied = program, copied
        graph = list(program.graph.nodes)
        self.nodes = [n for n in graph if is_operator(n) and n not in copied]
        self.number = {n: i for i, n in enumerate(self.nodes)}
        self.makes = {s: n for n in self.nodes for s in new_symbols(n)}
        self.dims: dict[Expr, int] = {}

    def flow(self) -> Flow:
        readers: dict[Node, dict[int, None]] = defaultdict(dict)
        before: list[dict[int, None]] = [{} for _ in self.nodes]
        for i, node in enumerate(self.nodes):
            for value in self._reads(node, before[i]):
                readers[value][i] = None
        self._order_random(before)
        values = tuple(self._value(node, numbers) for node, numbers in readers.items())
        for found in values:
            if found.maker is not None:
                for i in found.readers:
                    before[i][found.maker] = None
        made, read = self._places(values)
        returned = {maker(n) for n in results(self.program.graph) if isinstance(n, Node)}
        leaves = tuple(n in returned for n in self.nodes)
        cheap, moving = tuple(map(is_cheap, self.nodes)), tuple(map(moves, self.nodes))
        return Flow(tuple(self.nodes), *_both(before), values, made, read, leaves, cheap, moving)

    def _reads(self, node: Node, before: dict[int, None]) -> Iterator[Node]:
        """Yield the values that an operator reads, and add the operators that determine its sizes to ``before``."""
        for value in operands(node):
            if _is_size(value):
                sources = (self.makes[s] for s in sorted(symbols_of(value)) if s in self.makes)
                before.update((self.number[n], None) for n in sources)
            elif value.name not in self.program.constants and maker(value) not in self.copied:
                yield value

    def _order_random(self, before: list[dict[int, None]]) -> None:
        """Order operators that draw random numbers as eager does."""
        draws = [i for i, node in enumerate(self.nodes) if draws_random(node)]
        for first, second in pairwise(draws):
            before[second][first] = None

    def _value(self, node: Node, readers: Mapping[int, None]) -> Value:
        return Value(node, self.number.get(maker(node)), tuple(readers), self._nbytes(node.meta["val"]))

    def _nbytes(self, value: object) -> int:
        if not isinstance(value, torch.Tensor):
            return 0
        return value.dtype.itemsize * math.prod(map(self._dim, shape_of(value)))

    def _dim(self, size: Expr) -> int:
        if isinstance(size, int):
            return size
        if size not in self.dims:
            self.dims[size] = bounds(size, self.program.shapes).opt
        return self.dims[size]

    def _places(self, values: Iterable[Value]) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        made: list[list[int]] = [[] for _ in self.nodes]
        read: list[list[int]] = [[] for _ in self.nodes]
        for at, value in enumerate(values):
            if value.maker is not None:
                made[value.maker].append(at)
            for i in value.readers:
                read[i].append(at)
        return tuple(map(tuple, made)), tuple(map(tuple, read))


def _both(before: list[dict[int, None]]) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    after: list[list[int]] = [[] for _ in before]
    for i, earlier in enumerate(before):
        for j in earlier:
            after[j].append(i)
    return tuple(map(tuple, before)), tuple(map(tuple, after))
