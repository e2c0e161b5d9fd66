"""Provide helpers for graphs: read results, copy nodes, create graph modules, and evaluate deeply recursive rules."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias, TypeVar

import torch
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.node import map_arg

from pipeline.aten.types import Argument

T = TypeVar("T")

Steps: TypeAlias = Generator[tuple[Argument, ...], Argument, T]
"""A recursive rule over nodes, written as a generator: it yields (rule, arguments) for each result that it needs, and
receives that result from ``yield``."""


def results_of(graph: torch.fx.Graph) -> tuple[Argument, ...]:
    """Return the results of a graph, which are nodes or Python values."""
    returned: Argument = next(iter(reversed(graph.nodes))).args[0]
    return tuple(returned)


def graph_module(root: torch.nn.Module, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """Return a module that runs a graph with the root's parameters and submodules. Its Python code is generated at
    the first call: few graphs are ever called, and the code of ResNet-50 takes 20 to 50 ms to generate."""
    return _LazyGraphModule(root, graph)


def copy_node(node: torch.fx.Node, graph: torch.fx.Graph, remap: Callable[[torch.fx.Node], Argument]) -> torch.fx.Node:
    """Copy a node to the end of a graph; ``remap`` replaces the nodes in its arguments. The copy keeps the name, to
    which a program's signature refers; fx would rename a node called "input"."""
    copy = graph.node_copy(node, remap)
    copy.name = node.name
    return copy


def copy_graph(graph: torch.fx.Graph) -> torch.fx.Graph:
    """Return a copy of a graph with the same node names."""
    copy, env = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in graph.nodes:
        env[node] = copy_node(node, copy, env.__getitem__)
    return copy


def call_graph(
    graph: torch.fx.Graph, inputs: Iterable[object], execute: Callable[[torch.fx.Node, Argument, Argument], object]
) -> object:
    """Run a graph on these inputs: ``execute(node, args, kwargs)`` executes each call. Return the graph's results."""
    env, given = dict[torch.fx.Node, Argument](), iter(inputs)
    for node in graph.nodes:
        if node.op == "placeholder":
            env[node] = next(given)
        elif node.op == "output":
            return map_arg(node.args[0], env.__getitem__)
        else:
            env[node] = execute(node, *map_arg((node.args, dict(node.kwargs)), env.__getitem__))
    raise AssertionError("the graph has no output node")


def evaluate_recursively(
    rule: Callable[..., Steps[T]], *args: object, known_results: dict[tuple[Argument, ...], Argument] | None = None
) -> T:
    """Call a recursive function without Python's recursion limit, which long graphs exceed: ``rule`` is a generator
    that yields calls (function, *arguments) and is sent their results, which ``known_results`` caches."""
    known_results = {} if known_results is None else known_results
    if (rule, *args) in known_results:
        return known_results[rule, *args]  # type: ignore[no-any-return]
    waiting = [((rule, *args), rule(*args))]
    sent: Argument = None
    while waiting:
        call, steps = waiting[-1]
        try:
            needed = steps.send(sent)
        except StopIteration as end:
            known_results[call] = sent = end.value
            waiting.pop()
        else:
            sent = known_results.get(needed)
            if needed not in known_results:
                waiting.append((needed, needed[0](*needed[1:])))
    return known_results[rule, *args]  # type: ignore[no-any-return]
