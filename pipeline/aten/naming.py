"""Name TensorRT layers after the module and the node that they compute."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

import torch


def origin_of(meta: Mapping[str, object]) -> dict[str, Any]:
    """Return the entries of a node's metadata that describe its origin, for copying to nodes that replace it."""
    return {key: meta[key] for key in ("nn_module_stack", "stack_trace", "source_fn_stack") if key in meta}


def module_path(node: torch.fx.Node) -> str:
    """Return the path of the module that created a node (``encoder.layers.0.linear1``); empty for the root module."""
    return module_path_in(node.meta)


def module_path_in(meta: Mapping[str, Any]) -> str:
    """Return the path of the module that created a node, from the node's metadata; empty for the root module."""
    stack = meta.get("nn_module_stack") or {}
    return _without_root(next((str(entry[0]) for entry in reversed(stack.values()) if isinstance(entry, tuple)), ""))


def _without_root(path: str) -> str:
    """Return a module path without the prefix of the root module: ``encoder`` for ``L['self'].encoder``."""
    path = path.removeprefix("L['self'].").removeprefix("L['self']")
    return "" if path.startswith("_empty_nn_module") else path


def module_stack(meta: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return (path, class) of each module whose forward created a node, outermost first, from the node's metadata."""
    entries = (entry for entry in (meta.get("nn_module_stack") or {}).values() if isinstance(entry, tuple))
    stack = ((_without_root(str(entry[0])), entry[1]) for entry in entries)
    return tuple((path, k if isinstance(k, str) else f"{k.__module__}.{k.__qualname__}") for path, k in stack)


def module_meta(path: str, classes: Mapping[str, str]) -> dict[str, Any]:
    """Return node metadata that names the module at ``path`` as the origin; ``classes``: module classes by path."""
    parts = path.split(".") if path else []
    paths = ["", *(".".join(parts[:i]) for i in range(1, len(parts) + 1))]
    return {"nn_module_stack": {each: (each, classes[each]) for each in paths if each in classes}}


def layer_name(node: torch.fx.Node) -> str:
    """Return a layer name for a node, such as ``encoder.layers.0.linear1/addmm``; it is unique if node names are."""
    path = module_path(node)
    return f"{path}/{node.name}" if path else node.name


_NODE = re.compile(r"(?:.*/)?(\w+)")


def node_name(layer: str) -> str:
    """Return the name of the node in a layer's name: ``linear`` for ``encoder.0/linear:constant.1``."""
    found = _NODE.match(layer)
    return found[1] if found else layer


def make_unique(name: str, used: set[str]) -> str:
    """Return the name, or the first of ``name_1``, ``name_2`` … that is not in ``used``, and add it to ``used``."""
    names = itertools.chain([name], (f"{name}_{i}" for i in itertools.count(1)))
    found = next(n for n in names if n not in used)
    used.add(found)
    return found
