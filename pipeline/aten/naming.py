"""Name layers after the module and node that they come from."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

import torch


def origin(meta: Mapping[str, object]) -> dict[str, Any]:
    """The part of a node's meta that says where it comes from, for nodes that are made on its behalf."""
    return {key: meta[key] for key in ("nn_module_stack", "stack_trace", "source_fn_stack") if key in meta}


def module_path(node: torch.fx.Node) -> str:
    """The path of the module whose forward made the node (``encoder.layers.0.linear1``); empty at the top."""
    return path_of(node.meta)


def path_of(meta: Mapping[str, Any]) -> str:
    """`module_path` of a node that has this ``meta``."""
    stack = meta.get("nn_module_stack") or {}
    return _path(next((str(entry[0]) for entry in reversed(stack.values()) if isinstance(entry, tuple)), ""))


def _path(path: str) -> str:
    path = path.removeprefix("L['self'].").removeprefix("L['self']")
    return "" if path.startswith("_empty_nn_module") else path


def module_stack(meta: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The modules whose forwards made a node of this ``meta``, outermost first: the path and the class of each."""
    entries = (entry for entry in (meta.get("nn_module_stack") or {}).values() if isinstance(entry, tuple))
    stack = ((_path(str(entry[0])), entry[1]) for entry in entries)
    return tuple((path, kind if isinstance(kind, str) else _class_name(kind)) for path, kind in stack)


def stack_of(path: str, classes: Mapping[str, str]) -> dict[str, Any]:
    """The meta of a node that the module at a path made; ``classes`` maps each path to its class."""
    parts = path.split(".") if path else []
    paths = ["", *(".".join(parts[:i]) for i in range(1, len(parts) + 1))]
    return {"nn_module_stack": {each: (each, classes[each]) for each in paths if each in classes}}


def _class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def layer_name(node: torch.fx.Node) -> str:
    """``encoder.layers.0.linear1/addmm``: unique in a graph, as node names are."""
    path = module_path(node)
    return f"{path}/{node.name}" if path else node.name


_NODE = re.compile(r"(?:.*/)?(\w+)")


def node_of(layer: str) -> str:
    """The node that a layer is named after: ``encoder.0/linear:constant.1`` belongs to ``linear``."""
    found = _NODE.match(layer)
    return found[1] if found else layer


def unlike(name: str, taken: set[str]) -> str:
    """Return the name, or the first of ``name_1``, ``name_2`` … that is free, and mark it as taken."""
    names = itertools.chain([name], (f"{name}_{i}" for i in itertools.count(1)))
    found = next(n for n in names if n not in taken)
    taken.add(found)
    return found
