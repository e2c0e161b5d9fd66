"""Identify collectives in a graph: operators of torch.distributed that all ranks of a process group call together."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

import torch

from pipeline.aten.arguments import argument

SPACE: Final = "_c10d_functional"
"""The namespace of collective operators. They send tensors to other ranks, so a file needs permission to call them."""
PURE_COLLECTIVES: Final = frozenset(
    ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast", "wait_tensor")
)
"""The names of collective operators that do not write to their inputs."""
BETWEEN_ENGINES: Final = "a collective runs in PyTorch, between engines, with its process group"
"""The reason that is reported for a collective that runs in PyTorch instead of an engine."""


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's local part of a DTensor; return any other tensor unchanged."""
    module = sys.modules.get("torch.distributed.tensor")
    return tensor.to_local() if module is not None and isinstance(tensor, module.DTensor) else tensor


def is_collective(node: torch.fx.Node) -> bool:
    """Return whether a node is a collective, or waits for the result of one."""
    return getattr(node.target, "namespace", "") == SPACE


def is_wait(node: torch.fx.Node) -> bool:
    """Return whether a node waits for a collective."""
    return is_collective(node) and node.target is torch.ops._c10d_functional.wait_tensor.default


def follows_previous_collective(node: torch.fx.Node) -> bool:
    """Return whether a collective depends, maybe indirectly, on the previous one of its graph (True for the first)."""
    before = None
    for each in node.graph.nodes:
        if each is node:
            break
        before = each if is_collective(each) and not is_wait(each) else before
    seen, left = {node}, [node]
    while left and before is not None and before not in seen:
        new = {*left.pop().all_input_nodes} - seen
        seen |= new
        left += new
    return before is None or before in seen


def process_groups(nodes: Iterable[torch.fx.Node]) -> tuple[str, ...]:
    """Return the distinct process group names of the collectives among ``nodes``, in order of first use."""
    found = (argument(node, "group_name", "") for node in nodes if is_collective(node))
    return tuple(dict.fromkeys(str(name) for name in found if name))
