"""Inline the regions of an exported graph: the bodies of context managers in the model, such as ``torch.no_grad()``."""

from __future__ import annotations

import operator
from collections.abc import Mapping

import torch
from torch.fx.node import map_arg

from pipeline.aten.graphs import graph_module
from pipeline.aten.naming import make_unique
from pipeline.aten.types import Argument, Node


def calls_context_region(node: Node) -> bool:
    """Return whether a node runs the body of a context manager in the model, such as ``torch.no_grad()``."""
    return isinstance(node.target, torch._ops.HigherOrderOperator) and "wrap" in node.target.name()


def inline_context_regions(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Inline regions that do not affect results (``torch.no_grad()``); return the module itself if it has none."""
    if not any(_is_inlinable_region(node, module) for node in module.graph.nodes):
        return module
    inliner = _Inliner({node.name for node in module.graph.nodes})
    inliner.append_graph(module, {})
    return graph_module(module, inliner.graph)


def _inlinable_region(node: Node, root: torch.nn.Module) -> tuple[torch.fx.GraphModule, tuple[Argument, ...]] | None:
    """Return a region's graph module and the nodes that are its inputs, if the region can be inlined; else None."""
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
    return (module, tuple(args)) if _calls_only_inlinable_regions(module) else None


def _is_inlinable_region(node: Node, root: torch.nn.Module) -> bool:
    """Return whether a node of the module ``root`` runs a region that can be inlined (``torch.no_grad()``)."""
    return calls_context_region(node) and _inlinable_region(node, root) is not None


def _calls_only_inlinable_regions(module: torch.fx.GraphModule) -> bool:
    """Return whether the only graphs that a graph calls are regions that can be inlined."""
    regions = set(filter(calls_context_region, module.graph.nodes))
    needed = {user for node in module.graph.find_nodes(op="get_attr") for user in node.users}
    return needed <= regions and all(_is_inlinable_region(node, module) for node in regions)


class _Inliner:
    """Copies a graph, and inlines regions: the subgraphs that context managers such as ``torch.no_grad()`` run."""

    def __init__(self, names: set[str]) -> None:
        self.graph, self.taken = torch.fx.Graph(), names

    def append_graph(
        self, module: torch.fx.GraphModule, env: dict[Node, Argument], *, keep_names: bool = True
    ) -> Argument:
        """Append a copy of a module's graph to the new graph. ``env``: the values in place of the graph's placeholders.

        For the outermost graph, ``keep_names`` is True: nodes keep their names, to which the export's signature refers,
        the output node is copied, and None is returned. For a region (the body of ``torch.no_grad()``) it is False:
        nodes get new names, and the tuple of the region's results is returned.
        """
        for node in module.graph.nodes:
            if node in env or (node.op == "get_attr" and all(_is_inlinable_region(u, module) for u in node.users)):
                continue
            if node.op == "output":
                if not keep_names:
                    return map_arg(tuple(node.args[0]), env.__getitem__)
                self.graph.node_copy(node, env.__getitem__)
                continue
            env[node] = self.copy_node(node, module, env, keep_names)
        return None

    def copy_node(
        self, node: Node, module: torch.fx.GraphModule, env: Mapping[Node, Argument], keep_names: bool
    ) -> Argument:
        """Return a copy of a node of ``module``. If the node runs a region that can be inlined, append the nodes of the
        region instead, and return the tuple of its results. ``env``: the copy of each earlier node. ``keep_names``:
        whether the copy keeps the node's name."""
        found = _inlinable_region(node, module) if calls_context_region(node) else None
        if found is not None:
            body, args = found
            places = [n for n in body.graph.nodes if n.op == "placeholder"]
            given = map_arg(args, env.__getitem__)
            return self.append_graph(body, dict(zip(places, given, strict=True)), keep_names=False)
        if node.target is operator.getitem and isinstance(env[node.args[0]], tuple):  # type: ignore[index]
            return env[node.args[0]][node.args[1]]  # type: ignore[index]
        made = self.graph.node_copy(node, env.__getitem__)
        made.name = node.name if keep_names else make_unique(node.name, self.taken)
        return made
