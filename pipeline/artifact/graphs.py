"""Write torch.fx graphs as JSON, one row a node: name, target, arguments, dtype and sizes of the result.

Operators that run in PyTorch are looked up again among torch's. Of operators that run in engines only the names are
kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from attrs import evolve, frozen
from torch.fx.node import map_aggregate

from pipeline.artifact import codec, operators, values
from pipeline.artifact.codec import Json, at
from pipeline.artifact.json_data import JsonData
from pipeline.artifact.tensors import Kept, Tensors
from pipeline.artifact.values import MalformedError, MissingOperatorError, NodeName
from pipeline.aten.graphs import over
from pipeline.aten.naming import module_path
from pipeline.aten.tensor_type import TensorType
from pipeline.errors import ArtifactError, line_of
from pipeline.shapes.environment import shape_of

Row: TypeAlias = dict[str, JsonData]


@frozen
class KeptNode:
    """A node: ``calls`` says whether its target is looked up again; ``value`` is its value, as JSON; ``module`` is
    the path of the module whose forward made it, ``where`` the user's line."""

    name: str
    op: str
    target: str
    args: Json
    kwargs: Json
    value: Json | None = None
    calls: bool = True
    library: str = ""
    module: str = ""
    where: str = ""


@frozen
class KeptGraph:
    """A graph of control flow: its nodes, the graphs that they run, and the tensors that they read, by attribute."""

    nodes: tuple[KeptNode, ...]
    graphs: tuple[tuple[str, KeptGraph], ...] = ()
    tensors: tuple[tuple[str, Kept], ...] = ()


def kept_node(node: torch.fx.Node, *, calls: bool) -> KeptNode:
    """The row of a node; one whose target is not called again may have any arguments."""
    write = values.written if calls else _written_or_text
    target = str(node.target)
    if node.op == "call_function":
        target = operators.name_of(node.target) if calls else operators.name_of_any(node.target)
    elif node.op not in ("placeholder", "get_attr", "output"):
        raise ArtifactError(f"node {node.name} cannot be kept: it is a {node.op}")
    value = written_value(node.meta.get("val")) if "val" in node.meta else None
    library = operators.library_of(node.target) if calls else ""
    args, kwargs = write(node.args), write(dict(node.kwargs))
    where = node.meta.get("where") or line_of(node.meta)
    return KeptNode(node.name, node.op, target, args, kwargs, value, calls, library, module_path(node), where)


def _written_or_text(value: object) -> JsonData:
    try:
        return values.written(value)
    except ArtifactError:
        return str(value)


def written_value(value: object) -> JsonData:
    """A node's value as JSON: a tensor by its type, a size by its expression, a tuple of these."""
    if isinstance(value, torch.Tensor):
        value = TensorType(value.dtype, shape_of(value), value.device.type)
    if isinstance(value, TensorType):
        return {"tensor": codec.written(value, TensorType)}
    if isinstance(value, (tuple, list)):
        return {"tuple" if isinstance(value, tuple) else "list": [written_value(part) for part in value]}
    try:
        return values.written(value)
    except ArtifactError:
        return None


def read_value(data: JsonData) -> Any:
    """Read a node's value."""
    if not isinstance(data, dict) or len(data) != 1:
        return values.read(data)
    name, inner = next(iter(data.items()))
    if name == "tensor":
        return codec.read(inner, TensorType)
    if name in ("tuple", "list") and isinstance(inner, list):
        return (tuple if name == "tuple" else list)(map(read_value, inner))
    return values.read(data)


def kept_graph(module: torch.fx.GraphModule, name: str, tensors: Tensors) -> KeptGraph:
    """A graph of control flow, with those inside it. The node that runs it says which module and line it comes from."""
    rows = (kept_node(node, calls=True) for node in module.graph.nodes)
    nodes = tuple(evolve(row, value=None, module="", where="") for row in rows)
    graphs, held = attributes(module, module.graph.nodes, name, tensors)
    return KeptGraph(nodes, graphs, held)


def attributes(
    module: torch.nn.Module, nodes: Iterable[torch.fx.Node], name: str, tensors: Tensors
) -> tuple[tuple[tuple[str, KeptGraph], ...], tuple[tuple[str, Kept], ...]]:
    """The graphs and the tensors that nodes read as attributes of a module."""
    graphs: dict[str, KeptGraph] = {}
    held: dict[str, Kept] = {}
    for target in sorted({str(node.target) for node in nodes if node.op == "get_attr"}):
        value: object = module
        for part in target.split("."):
            value = getattr(value, part)
        if isinstance(value, torch.fx.GraphModule):
            graphs[target] = kept_graph(value, f"{name}.{target}", tensors)
        elif isinstance(value, torch.Tensor):
            held[target] = tensors.keep(f"{name}.{target}", value)
        else:
            raise ArtifactError(f"{name}.{target} cannot be kept: it is a {type(value).__name__}")
    return tuple(graphs.items()), tuple(held.items())


Held: TypeAlias = Callable[[Kept], torch.Tensor]


def graph_module(kept: KeptGraph, held: Held) -> torch.fx.GraphModule:
    """Make the module of a graph."""
    graph = torch.fx.Graph()
    add_nodes(graph, kept.nodes)
    return over(root_of(kept.graphs, kept.tensors, held), graph)


def root_of(
    graphs: Sequence[tuple[str, KeptGraph]], tensors: Sequence[tuple[str, Kept]], held: Held
) -> torch.nn.Module:
    """A module that has graphs and tensors as attributes, by their paths."""
    root = torch.nn.Module()
    for path, graph in graphs:
        parent, name = _parent(root, path)
        parent.add_module(name, graph_module(graph, held))
    for path, kept in tensors:
        parent, name = _parent(root, path)
        parent.register_buffer(name, held(kept), persistent=False)
    return root


def _parent(root: torch.nn.Module, path: str) -> tuple[torch.nn.Module, str]:
    *parents, name = path.split(".")
    for part in parents:
        if part not in root._modules:
            root.add_module(part, torch.nn.Module())
        root = root.get_submodule(part)
    if not name or hasattr(root, name):
        raise MalformedError(f"{path[:60]!r} is no name of an attribute")
    return root, name


def add_nodes(graph: torch.fx.Graph, rows: Iterable[KeptNode]) -> None:
    """Add nodes to a graph in order.

    Raises:
        ArtifactError: an operator is missing (the message names the library to import), or a node reads a later one.
    """
    env: dict[str, torch.fx.Node] = {}
    for row in rows:
        env[row.name] = at(f"node {row.name}", lambda each: _add(graph, each, env), row)


def _add(graph: torch.fx.Graph, row: KeptNode, env: Mapping[str, torch.fx.Node]) -> torch.fx.Node:
    def resolved(value: object) -> Any:
        if not isinstance(value, NodeName):
            return value
        if value.name not in env:
            raise MalformedError(f"it reads {value.name[:60]!r}, which is not there before it")
        return env[value.name]

    args, kwargs = values.read(row.args), values.read(row.kwargs)
    if not isinstance(args, tuple) or not isinstance(kwargs, dict) or row.name in env or not row.name.isidentifier():
        raise MalformedError("its arguments are not those of a call, or its name is taken")
    if row.op not in ("placeholder", "get_attr", "output", "call_function"):
        raise MalformedError(f"{row.op[:40]!r} is no kind of node")
    target = _target(row) if row.op == "call_function" else row.target
    node = graph.create_node(
        row.op, target, map_aggregate(args, resolved), map_aggregate(kwargs, resolved), name=row.name
    )
    node.name = row.name
    if row.value is not None:
        node.meta["val"] = read_value(row.value)
    return node


def _target(row: KeptNode) -> Any:
    if not row.calls:
        return operators.FUNCTIONS.get(row.target) or operators.Named(row.target)
    found = operators.target_of(row.target)
    if found is None:
        library = f"import {row.library}, which defines it, before loading" if row.library else ""
        raise MissingOperatorError(f"the operator {row.target[:80]} is not there", library)
    return found
