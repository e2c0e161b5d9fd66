"""Names of layers: the module path and the node, as a reader of the model would look for them."""

from __future__ import annotations

import torch


def module_path(node: torch.fx.Node) -> str:
    """The path of the module whose forward made the node (``encoder.layers.0.linear1``); empty at the top."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next((str(entry[0]) for entry in reversed(stack.values()) if isinstance(entry, tuple)), "")
    path = path.removeprefix("L['self'].").removeprefix("L['self']")
    return "" if path.startswith("_empty_nn_module") else path


def layer_name(node: torch.fx.Node) -> str:
    """``encoder.layers.0.linear1/addmm``: unique in a graph, as node names are."""
    path = module_path(node)
    return f"{path}/{node.name}" if path else node.name
