"""Inline regions of torch.export, such as ``torch.no_grad()``, if they change nothing."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch.fx.node import map_arg

from pipeline.aten.graphs import over, results
from pipeline.aten.naming import unlike
from pipeline.aten.types import Argument

Node: TypeAlias = torch.fx.Node


def wraps(node: Node) -> bool:
    """Return whether a node runs a region."""
    return isinstance(node.target, torch._ops.HigherOrderOperator) and "wrap" in node.target.name()


def inlined(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return the module without regions that change nothing; itself if it has none."""
    nodes = list(module.graph.nodes)
    if not any(_has_body(node, module) for node in nodes):
        return module
    inliner = _Inliner({node.name for node in nodes})
    inliner.copy(module, {})
    return over(module, inliner.graph)


def _body(node: Node, root: torch.nn.Module) -> tuple[torch.fx.GraphModule, tuple[Argument, ...]] | None:
    """Return the graph and inputs of a region that can be inlined; None for other regions."""
    name = node.target.name()  # type: ignore[union-attr]
    if name == "wrap_with_set_grad_enabled":
        _, body, *args = node.args
    elif name == "wrap_with_autocast" and not node.args[2]:
        *_, body = node.args[:5]
        args = list(node.args[5:])
    else:
        return None
    module = root.get_submodule(str(body.target))  # type: ignore[union-attr]
    assert isinstance(module, torch.fx.GraphModule)
    return (module, tuple(args)) if _is_plain(module) else None


def _has_body(node: Node, root: torch.nn.Module) -> bool:
    return wraps(node) and _body(node, root) is not None


def _is_plain(module: torch.fx.GraphModule) -> bool:
    """Return whether a graph calls no other graphs except regions without effect."""
    nodes = list(module.graph.nodes)
    regions = [node for node in nodes if wraps(node)]
    needed = {user for node in nodes if node.op == "get_attr" for user in node.users}
    return needed <= {*regions} and all(_has_body(node, module) for node in regions)


class _Inliner:
    """Copies a graph, and the graphs of its regions in their place."""

    def __init__(self, names: set[str]) -> None:
        self.graph, self.taken = torch.fx.Graph(), names

    def copy(self, module: torch.fx.GraphModule, env: dict[Node, Argument], *, named: bool = True) -> Argument:
        """Append a graph, with the given inputs or its own placeholders; return its results.

        named: the nodes keep their names, which a signature refers to.
        """
        for node in module.graph.nodes:
            if node in env or (node.op == "get_attr" and all(_has_body(user, module) for user in node.users)):
                continue
            if node.op == "output":
                if not named:
                    return map_arg(tuple(results(module.graph)), env.__getitem__)
                self.graph.node_copy(node, env.__getitem__)
                continue
            env[node] = self.value(node, module, env, named)
        return None

    def value(self, node: Node, module: torch.fx.GraphModule, env: Mapping[Node, Argument], named: bool) -> Argument:
        """Return a node's value in the new graph; for a region, its results."""
        found = _body(node, module) if wraps(node) else None
        if found is not None:
            body, args = found
            places = [n for n in body.graph.nodes if n.op == "placeholder"]
            given = map_arg(args, env.__getitem__)
            return self.copy(body, dict(zip(places, given, strict=True)), named=False)
        if node.target is operator.getitem and isinstance(env[node.args[0]], tuple):  # type: ignore[index]
            return env[node.args[0]][node.args[1]]  # type: ignore[index]
        made = self.graph.node_copy(node, env.__getitem__)
        made.name = node.name if named else unlike(node.name, self.taken)
        return made
