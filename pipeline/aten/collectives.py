"""Collectives of a graph: operators of torch.distributed that ranks call together."""

from __future__ import annotations

from typing import Final

import torch

SPACE: Final = "_c10d_functional"
"""The namespace of collectives as operators."""
PURE_COLLECTIVES: Final = frozenset(
    ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast", "wait_tensor")
)
"""Those that write to none of their inputs."""


def is_collective(node: torch.fx.Node) -> bool:
    """Return whether ranks call a node together, or wait for each other in it."""
    return getattr(node.target, "namespace", "") == SPACE


def groups_of(graph: torch.fx.Graph) -> tuple[str, ...]:
    """Return the names of the groups of ranks that a graph's collectives join, in order."""
    found = [name for node in graph.nodes if is_collective(node) and (name := _group(node))]
    return tuple(dict.fromkeys(found))


def renamed(graph: torch.fx.Graph, names: dict[str, str]) -> None:
    """Give the groups of a graph's collectives other names, in place."""
    for node in graph.nodes:
        if is_collective(node) and (name := _group(node)):
            place = next(i for i, each in enumerate(node.target._schema.arguments) if each.name == "group_name")
            node.args = (*node.args[:place], names[name], *node.args[place + 1 :])


def _group(node: torch.fx.Node) -> str:
    named = zip(node.target._schema.arguments, node.args, strict=False)  # type: ignore[union-attr]
    return next((str(value) for argument, value in named if argument.name == "group_name"), "")
