"""Do not compute tensors of which only the size is read: compute the size from the sizes of inputs.

``torch.full_like(layer(x), 0.5)`` needs no layer: its size follows from the size of ``x``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import torch
from torch.fx.node import map_arg
from torch.fx.proxy import GraphAppendingTracer, Proxy
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from pipeline.aten.types import Argument, aten
from pipeline.program import is_operator
from pipeline.shapes.environment import expression
from pipeline.shapes.linear import linear_coefficients


def replace_size_reads(inputs: Iterable[torch.fx.Node], graph: torch.fx.Graph) -> None:
    """Replace operators whose results are read only for their size: compute the size from the inputs' sizes."""
    places = _size_sources(inputs)
    live, sizes = _live_and_size_nodes(graph, places)
    for node in sizes:
        if any(is_operator(n) and n not in live for n in node.all_input_nodes):
            node.replace_all_uses_with(_insert_size_nodes(graph, node, places))


def _graph_call(function: Callable[..., Argument]) -> Callable[..., Argument]:
    """Return a method that adds a call of a one-argument function to the graph instead of running the function."""
    return staticmethod(lambda x, *_: x.tracer.create_proxy("call_function", function, (x,), {}))


class _GraphSizeAnalysis(PythonReferenceAnalysis):
    """Adds a size expression to a graph as nodes that call functions such as ``math.trunc``, as torch.export does; the
    base class would call these functions at once."""

    trunc_to_int, round_to_int = _graph_call(math.trunc), _graph_call(round)
    floor_to_int, ceil_to_int = _graph_call(math.floor), _graph_call(math.ceil)

    @staticmethod
    def int_truediv(a: Argument, b: Argument) -> Argument:
        """Add a node for the quotient, a float, of two integers in a size expression."""
        return a / b

    @staticmethod
    def expr_cond_pair(value: Argument, condition: Argument) -> tuple[Argument, Argument]:
        """Return one case of a SymPy ``Piecewise`` expression, a value and its condition, unchanged."""
        return value, condition  # torch 2.11 has no conditions

    @staticmethod
    def piecewise(*pairs: tuple[Argument, Argument]) -> Argument:
        """Add nodes for a SymPy ``Piecewise`` expression: the value of the first pair whose condition is true."""
        *before, (result, _) = pairs
        for value, condition in reversed(before):
            result = torch.sym_ite(condition, value, result)
        return result


InputSize: TypeAlias = tuple[torch.fx.Node, int | None, int, int]
"""An input, its dim (None for a number), and the slope and offset of its size as a linear expression of a symbol."""


def _size_sources(inputs: Iterable[torch.fx.Node]) -> Mapping[str, InputSize]:
    """Return for each symbol an input dim to compute it from, preferably a dim whose size is the symbol itself."""
    found: dict[str, InputSize] = {}
    for node in inputs:
        value = node.meta.get("val")
        sizes = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]
        for dim, size in sizes:
            expr = expression(size) if isinstance(size, torch.SymInt) else 0
            for symbol in () if isinstance(expr, int) else expr.free_symbols:
                line = linear_coefficients(expr, symbol.name)
                if line is not None and (symbol.name not in found or line == (1, 0) != found[symbol.name][2:]):
                    found[symbol.name] = (node, dim, *line)
    return found


def _live_and_size_nodes(
    graph: torch.fx.Graph, sources: Mapping[str, InputSize]
) -> tuple[set[torch.fx.Node], list[torch.fx.Node]]:
    """Return the nodes that the outputs need, and the size nodes that these read and that can be computed from sizes of
    inputs. Nodes that are needed only to read such a size are in neither. ``sources``: an input dim for each symbol."""
    live: set[torch.fx.Node] = set()
    sizes: set[torch.fx.Node] = set()
    waiting = [graph.output_node()]
    while waiting:
        node = waiting.pop()
        if node in live or node in sizes:
            continue
        if _can_be_computed_from(node, sources):
            sizes.add(node)
        else:
            live.add(node)
            waiting += node.all_input_nodes
    return live, [node for node in graph.nodes if node in sizes]


def _can_be_computed_from(node: torch.fx.Node, sources: Mapping[str, InputSize]) -> bool:
    """Return whether a node is a dynamic size, all of whose symbols can be computed from inputs (``sources``)."""
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, torch.SymInt) or isinstance(expr := expression(value), int):
        return False
    return all(symbol.name in sources for symbol in expr.free_symbols)


def _insert_size_nodes(graph: torch.fx.Graph, node: torch.fx.Node, sources: Mapping[str, InputSize]) -> torch.fx.Node:
    """Insert nodes that compute a size from the inputs' sizes, before the node that read it from a tensor."""
    expr: Argument = expression(node.meta["val"])
    before = node.prev
    with graph.inserting_before(node):
        tracer = GraphAppendingTracer(graph)
        known = {symbol: _symbol_proxy(tracer, sources[symbol.name]) for symbol in sorted(expr.free_symbols, key=str)}
        result: torch.fx.Node = sympy_interp(_GraphSizeAnalysis, known, expr).node
    made: Argument = before.next
    while made is not node:
        args, kwargs = map_arg((made.args, made.kwargs), lambda n: n.meta["val"])
        made.meta["val"] = made.target(*args, **kwargs)
        made = made.next
    return result


def _symbol_proxy(tracer: GraphAppendingTracer, size_input: InputSize) -> Argument:
    """Add nodes that compute a symbol from the size of an input, and return the result as a torch.fx proxy."""
    node, dim, slope, offset = size_input
    size: Argument = Proxy(node, tracer)
    if dim is not None:
        size = Proxy(tracer.graph.call_function(aten.sym_size.int, (node, dim)), tracer)
    size = size - offset if offset else size
    return size // slope if slope != 1 else size
