"""Compute results of a Dynamo graph that are views in PyTorch, from the tensors that the compiled program returns.

A compiled program returns each result in separate memory. But code that Dynamo runs after the graph may write to a view
of an input, or write to one of two results that share memory and then read the other.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen
from torch.fx import Graph, GraphModule, Node

from pipeline.aten.graphs import copy_node, results_of
from pipeline.aten.types import Argument
from pipeline.capture.aliases import storage_id

VIEW_FUNCTIONS = frozenset(
    [
        *("chunk", "contiguous", "detach", "diagonal", "expand", "expand_as", "flatten", "mT", "movedim", "narrow"),
        *("permute", "real", "imag", "ravel", "reshape", "select", "split", "split_with_sizes", "squeeze", "swapaxes"),
        *("swapdims", "t", "T", "tensor_split", "to", "transpose", "unbind", "unflatten", "unfold", "unsqueeze"),
        *("view", "view_as", "view_as_complex", "view_as_real", "hsplit", "vsplit", "dsplit", "type_as", "float"),
    ]
)
"""Functions, methods and attributes of tensors that change nothing, and whose results may be views."""


@frozen
class ReturnedViews:
    """A Dynamo graph in two parts. ``core``, which is compiled, computes the results that are not views of inputs or of
    other results. ``results(*arguments, *core_results)``, in PyTorch, adds the views, and returns all results of the
    graph; it is None if no result is such a view, and ``core`` is the graph."""

    core: GraphModule
    results: Callable[..., Sequence[Argument]] | None = None


def split_returned_views(module: GraphModule) -> ReturnedViews:
    """Split Dynamo's graph into a graph to compile and a function that computes the returned views of inputs and of
    results in PyTorch. The argument is not changed."""
    returned = results_of(module.graph)
    bases = _owners_of_shared_memory(module.graph, returned)
    taken = {node: base for node, base in bases.items() if node is not base and _is_computed_by_views(node, base)}
    if not taken:
        return ReturnedViews(module)
    kept = list(dict.fromkeys([*(n for n in returned if n not in taken), *taken.values()]))
    kept = [node for node in kept if node.op != "placeholder"]
    return ReturnedViews(_core_graph(module, kept), _make_results_function(module, kept, returned))


def _example_storage_id(node: object) -> int | None:
    """Return an id of the storage of a node's example tensor; None if the node has no tensor."""
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return storage_id(value) if isinstance(value, torch.Tensor) else None


def _owners_of_shared_memory(graph: Graph, returned: Sequence[Any]) -> dict[Node, Node]:
    """Map each returned tensor that shares memory with an input or another result to the node that created the
    memory."""
    first: dict[int, Node] = {}
    for node in graph.nodes:
        if (memory := _example_storage_id(node)) is not None:
            first.setdefault(memory, node)
    found = [(node, memory) for node in dict.fromkeys(returned) if (memory := _example_storage_id(node)) is not None]
    count = Counter(memory for _, memory in found)
    shared = [(n, m) for n, m in found if count[m] > 1 or first[m].op == "placeholder"]
    return {node: first[memory] for node, memory in shared}


def _is_computed_by_views(node: Node, base: Node) -> bool:
    """Return whether a node is computed only from ``base`` and sizes, by functions without side effects."""
    if base.op != "placeholder" and not base.meta["example_value"].is_contiguous():
        return False  # as the program gives it, it lies in memory otherwise, where views of it may fail
    stack = [node]
    while stack:
        current = stack.pop()
        if current is base or (current.op == "placeholder" and _example_storage_id(current) is None):
            continue
        if current.op == "placeholder" or not (_calls_view_function(current) or _has_size_value(current)):
            return False
        stack += current.all_input_nodes
    return True


def _calls_view_function(node: Node) -> bool:
    """Return whether a node calls a function, method or attribute whose result may be a view (``x.mT``, ``x[0]``)."""
    if node.op == "call_method":
        return node.target in VIEW_FUNCTIONS
    if node.target is operator.getitem:
        return not any(isinstance(n.meta.get("example_value"), torch.Tensor) for n in node.all_input_nodes[1:])
    if node.target is getattr:
        return node.args[1] in VIEW_FUNCTIONS
    return node.op == "call_function" and getattr(node.target, "__name__", "") in VIEW_FUNCTIONS


def _has_size_value(node: Node) -> bool:
    """Return whether a node's value is a number or size, so that no operator can write to it."""
    value = node.meta.get("example_value")
    return isinstance(value, (int, torch.SymInt, torch.Size)) and node.op in ("call_function", "call_method")


def _core_graph(module: GraphModule, core_results: Sequence[Node]) -> GraphModule:
    """Return a copy of Dynamo's graph, to be compiled, that returns the nodes ``core_results`` instead of its own."""
    graph, env = Graph(), dict[Node, Node]()
    for node in module.graph.nodes:
        if node.op != "output":
            env[node] = copy_node(node, graph, env.__getitem__)
    graph.output(tuple(env[node] for node in core_results))
    return GraphModule(module, graph)


def _make_results_function(
    module: GraphModule, core_results: Sequence[Node], returned: Sequence[Argument]
) -> Callable[..., Sequence[Argument]]:
    """Return the function ``ReturnedViews.results``. It takes the arguments of Dynamo's graph, then the values of the
    nodes ``core_results``, which the compiled part computes; it returns ``returned``, all results of the graph."""
    graph = Graph()
    env = {node: graph.placeholder(node.name) for node in (*module.graph.find_nodes(op="placeholder"), *core_results)}
    waiting, needed = [value for value in returned if isinstance(value, Node)], set[Node]()
    while waiting:
        node = waiting.pop()
        if node not in needed and node not in env:
            needed.add(node)
            waiting += node.all_input_nodes
    for node in module.graph.nodes:
        if node in needed:
            env[node] = graph.node_copy(node, env.__getitem__)
    graph.output(tuple(env[value] if isinstance(value, Node) else value for value in returned))
    return GraphModule(module, graph).forward
