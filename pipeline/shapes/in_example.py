"""Measure data-dependent sizes on the example."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx.node import map_arg

from pipeline.aten.types import Argument, Target


def largest_size(node: torch.fx.Node, examples: Mapping[str, torch.Tensor]) -> int:
    """Return the largest size of a node's results for the example's tensors, by placeholder; 0 if it cannot be
    computed: a tensor is missing, or an operator before the node writes in place."""
    try:
        with torch.no_grad():
            results = _values(node, examples)
    except Exception:  # whatever eager raises: the example has no answer then
        return 0
    found = results if isinstance(results, tuple | list) else (results,)
    return max((size for t in found if isinstance(t, torch.Tensor) for size in t.shape), default=0)


def _values(node: torch.fx.Node, examples: Mapping[str, torch.Tensor]) -> Argument:
    """Return eager's result for a node, computed from the example."""
    needed, waiting = set[torch.fx.Node](), [node]
    while waiting:
        each = waiting.pop()
        if each not in needed:
            needed.add(each)
            waiting += each.all_input_nodes
    known: dict[torch.fx.Node, Argument] = {}
    for each in node.graph.nodes:
        if each in needed:
            known[each] = _value(each, known, examples)
        if each is node:
            break
    return known[node]


def _value(
    node: torch.fx.Node, known: Mapping[torch.fx.Node, Argument], examples: Mapping[str, torch.Tensor]
) -> Argument:
    if node.op == "placeholder":
        return examples[node.name]
    if node.op != "call_function" or getattr(getattr(node.target, "_schema", None), "is_mutable", False):
        raise LookupError(node.name)
    target: Target = node.target
    args, kwargs = map_arg(node.args, known.__getitem__), map_arg(dict(node.kwargs), known.__getitem__)
    return target(*args, **kwargs)
