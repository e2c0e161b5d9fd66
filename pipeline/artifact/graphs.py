"""Convert torch.fx graphs to JSON, a row per node: name, target, arguments, dtype and sizes of the result.
When a graph is loaded, operators that run in PyTorch are looked up; of nodes in engines it has only operator names."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from attrs import evolve, frozen
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx.node import map_aggregate

from pipeline.artifact import codec, json_values, op_names
from pipeline.artifact.allocations import min_bytes_to_fill
from pipeline.artifact.codec import Json, read_part
from pipeline.artifact.json_data import JsonData, MalformedError
from pipeline.artifact.json_values import NodeName
from pipeline.artifact.tensors import SavedTensor, TensorsToSave
from pipeline.aten.calls import FUNCTIONS
from pipeline.aten.naming import module_path
from pipeline.aten.tensor_type import TensorType
from pipeline.aten.types import Argument, Node
from pipeline.errors import ArtifactError, source_line_in
from pipeline.records.wording import kind_of
from pipeline.shapes.environment import shape_of

_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)*")


@frozen
class SavedNode:
    """A graph node in a file. ``calls``: whether `load` looks up the operator named ``target``; False for nodes in
    engines, which TensorRT runs. ``value``: the type of the node's result as JSON; ``module``: the path of the module
    whose forward contains the node; ``where``: the user's source line."""

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
class SavedGraph:
    """A graph in a file: its nodes, and the inner graphs and tensors that they read, by attribute name."""

    nodes: tuple[SavedNode, ...]
    graphs: tuple[tuple[str, SavedGraph], ...] = ()
    tensors: tuple[tuple[str, SavedTensor], ...] = ()


def save_graph(
    module: torch.nn.Module, nodes: Sequence[Node], name: str, tensors: TensorsToSave, engines: Collection[str] = ()
) -> SavedGraph:
    """Convert ``nodes`` of a graph module to a `SavedGraph`. Tensors that they read are added to ``tensors``, named
    ``name.attribute``; graphs that they read, such as a branch of ``cond``, are saved without modules and source lines.
    ``engines``: the names of nodes that run in engines, so that `load` need not find their operators."""
    rows = tuple(_save_node(node, calls_target=node.name not in engines) for node in nodes)
    graphs: dict[str, SavedGraph] = {}
    held: dict[str, SavedTensor] = {}
    for target in sorted({str(node.target) for node in nodes if node.op == "get_attr"}):
        value, path = attrgetter(target)(module), f"{name}.{target}"
        if isinstance(value, torch.fx.GraphModule):
            inner = save_graph(value, list(value.graph.nodes), path, tensors)
            bare = tuple(evolve(row, value=None, module="", where="") for row in inner.nodes)
            graphs[target] = evolve(inner, nodes=bare)
        elif isinstance(value, torch.Tensor):
            held[target] = tensors.add(path, value)
        else:
            raise ArtifactError(f"attribute {path} cannot be saved: it is {kind_of(value)}, not a tensor or a graph")
    return SavedGraph(rows, tuple(graphs.items()), tuple(held.items()))


def _save_node(node: torch.fx.Node, *, calls_target: bool) -> SavedNode:
    """Convert a graph node to a `SavedNode`. If ``calls_target`` is False, since the node runs in an engine, arguments
    that have no JSON form are saved as text."""
    write = json_values.to_json if calls_target else _to_json_or_text
    target = str(node.target)
    if node.op == "call_function":
        target = op_names.operator_name(node.target) if calls_target else op_names.readable_target_name(node.target)
        if calls_target and (why := op_names.refusal_reason(op_names.find_callable(target))):
            hint = "call it outside of the compiled model; a compiled module in a model is saved by itself"
            raise ArtifactError(f"node {node.name} cannot be saved: {target} {why}", hint)
    elif node.op not in ("placeholder", "get_attr", "output"):
        raise ArtifactError(f"node {node.name} cannot be saved: it is a {node.op} node, not a call_function node")
    value = fake_value_to_json(node.meta.get("val")) if "val" in node.meta else None
    library = op_names.defining_library(node.target) if calls_target else ""
    args, kwargs = write(node.args), write(dict(node.kwargs))
    where = node.meta.get("where") or source_line_in(node.meta)
    return SavedNode(node.name, node.op, target, args, kwargs, value, calls_target, library, module_path(node), where)


def _to_json_or_text(value: object) -> JsonData:
    """Convert a value to JSON; if its type cannot be saved, return its text instead (``str(value)``)."""
    try:
        return json_values.to_json(value)
    except ArtifactError:
        return str(value)


def fake_value_to_json(value: object) -> JsonData:
    """Convert a node's fake value to JSON: the type of a tensor, the expression of a size, or a tuple of these."""
    if isinstance(value, torch.Tensor):
        value = TensorType(value.dtype, shape_of(value), value.device.type)
    if isinstance(value, TensorType):
        return {"tensor": codec.to_json(value, TensorType)}
    if isinstance(value, (tuple, list)):
        return {"tuple" if isinstance(value, tuple) else "list": [fake_value_to_json(part) for part in value]}
    try:
        return json_values.to_json(value)
    except ArtifactError:
        return None


def value_type_from_json(data: JsonData) -> Any:
    """Convert the JSON of `fake_value_to_json` to a `TensorType`, a size, or a tuple or list of these."""
    if not isinstance(data, dict) or len(data) != 1:
        return json_values.from_json(data)
    name, inner = next(iter(data.items()))
    if name == "tensor":
        return codec.from_json(inner, TensorType)
    if name in ("tuple", "list") and isinstance(inner, list):
        return (tuple if name == "tuple" else list)(map(value_type_from_json, inner))
    return json_values.from_json(data)


class LoadedGraph(torch.fx.GraphModule):
    """A graph from a file, with the graphs and tensors that its nodes read. Since torch.fx would run it by generating
    Python source, calling it is an error; `pipeline.aten.interpreter` runs its nodes."""

    def recompile(self) -> Argument:
        """Do nothing, where torch.fx would generate Python code for the graph."""

    def forward(self, *args: object, **kwargs: object) -> Argument:
        """Raise an error: `pipeline.aten.interpreter` runs the nodes instead."""
        raise ArtifactError("the graph of a loaded program cannot be called: call compiled.module()(…) instead")


@frozen
class GraphBuilder:
    """Build torch.fx graphs from the nodes in a file. ``tensor`` reads a saved tensor. ``libraries``: the namespaces
    whose operators nodes may call, None for all. ``most``: the maximum bytes of a result of ``full`` or ``arange``."""

    tensor: Callable[[SavedTensor], torch.Tensor]
    libraries: Collection[str] | None
    most: int

    def build(self, graph: SavedGraph) -> LoadedGraph:
        """Build a graph; raise a `MissingOperatorError` or a `MalformedError` if a node cannot be added."""
        root = torch.nn.Module()
        inner = {path: self.build(each) for path, each in graph.graphs}
        held = {path: self.tensor(kept) for path, kept in graph.tensors}
        for path, module in inner.items():
            parent, name = _parent_and_attribute_name(root, path)
            parent.add_module(name, module)
        for path, tensor in held.items():
            parent, name = _parent_and_attribute_name(root, path)
            parent.register_buffer(name, tensor, persistent=False)
        nodes = NodeBuilder(self, inner.keys(), held.keys())
        for row in graph.nodes:
            read_part(f"node {row.name[:80]}", nodes.add_node, row)
        return LoadedGraph(root, nodes.graph)


def _parent_and_attribute_name(root: torch.nn.Module, path: str) -> tuple[torch.nn.Module, str]:
    *parents, name = path.split(".")
    for part in parents:
        if part not in root._modules and not hasattr(root, part):
            root.add_module(part, torch.nn.Module())
        found = root._modules.get(part)
        if found is None or isinstance(found, torch.fx.GraphModule):
            raise MalformedError(f"{path[:60]!r} is not the path of an attribute: {part[:60]!r} cannot contain it")
        root = found
    if not _PATH.fullmatch(path) or hasattr(root, name):
        raise MalformedError(f"{path[:60]!r} is not the path of an attribute: it is malformed or used twice")
    return root, name


def _argument_mismatch(schema: Sequence[Argument], positional_count: int, kwargs: Mapping[str, Argument]) -> str:
    """Return why an operator does not accept so many positional arguments and these keywords; empty if it does."""
    positional = [argument for argument in schema if not argument.kwarg_only]
    if positional_count > len(positional) or any(argument.name in kwargs for argument in positional[:positional_count]):
        return f"takes {len(positional)} arguments, but is called with more"
    given = {*kwargs, *(argument.name for argument in positional[:positional_count])}
    missing = [a.name for a in schema if a.name not in given and not a.has_default_value()]
    return f"is called without its argument {missing[0]!r}" if missing else ""


class NodeBuilder:
    """A torch.fx graph to which saved nodes are added. ``graphs``, ``tensors``: paths that ``get_attr`` may read."""

    def __init__(self, reader: GraphBuilder, graphs: Collection[str], tensors: Collection[str]) -> None:
        self.reader, self.graphs, self.tensors = reader, graphs, tensors
        self.graph = torch.fx.Graph()
        self.env: dict[str, torch.fx.Node] = {}

    def add_node(self, row: SavedNode) -> None:
        """Convert a saved node to a node of the graph; raise an error if it is malformed or calls what it must not."""
        args, kwargs = json_values.from_json(row.args), json_values.from_json(row.kwargs)
        if not isinstance(args, tuple) or not isinstance(kwargs, dict) or not all(type(name) is str for name in kwargs):
            raise MalformedError("the args of a node are not a tuple, or its kwargs are not a dict with str keys")
        if row.name in self.env or not row.name.isidentifier():
            raise MalformedError(f"the node name {row.name[:60]!r} is used twice, or is not an identifier")
        args, kwargs = map_aggregate(args, self.resolve_node_name), map_aggregate(kwargs, self.resolve_node_name)
        if row.op == "call_function":
            target = self.find_function(row, args, kwargs)
        else:
            target = row.target
            self.check_non_function(row, args, kwargs)
        node = self.graph.create_node(row.op, target, args, kwargs, name=row.name)
        node.name = row.name
        if row.value is not None:
            node.meta["val"] = value_type_from_json(row.value)
        self.env[row.name] = node

    def resolve_node_name(self, argument: object) -> Argument:
        """Return the graph node that a `NodeName` refers to; return any other argument unchanged."""
        if not isinstance(argument, NodeName):
            return argument
        if argument.name not in self.env:
            raise MalformedError(f"a node reads {argument.name[:60]!r}, which no earlier node computes")
        return self.env[argument.name]

    def check_non_function(self, row: SavedNode, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]) -> None:
        """Raise an error if a node that calls no function (such as a placeholder) is malformed."""
        fits = {
            "placeholder": row.target.isidentifier() and not args,
            "get_attr": (row.target in self.graphs or row.target in self.tensors) and not args,
            "output": len(args) == 1,
        }
        if row.op not in fits:
            raise MalformedError(f"a node has the op {row.op[:40]!r}, which torch.fx does not have")
        if kwargs or not fits[row.op]:
            raise MalformedError(f"the {row.op} node {row.target[:60]!r} has a missing target or extra arguments")

    def find_function(self, row: SavedNode, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]) -> Argument:
        """Return the function that a node calls; for a node in an engine, only the function's name."""
        if not row.calls:
            return FUNCTIONS.get(row.target) or op_names.OperatorName(row.target)
        target = op_names.find_allowed_operator(row.target, self.reader.libraries, row.library)
        schema = target._schema.arguments if isinstance(target, OpOverload) else None
        if strange := sorted(kwargs.keys() - {argument.name for argument in schema or ()}):
            raise MalformedError(f"the operator {row.target} has no argument {strange[0][:60]!r}")
        if schema is not None and (why := _argument_mismatch(schema, len(args), kwargs)):
            raise MalformedError(f"the operator {row.target} {why}")
        if (size := min_bytes_to_fill(target, args, kwargs)) > (most := self.reader.most):
            raise MalformedError(f"a node creates a tensor of {size} bytes, but the file declares at most {most} bytes")
        if isinstance(target, HigherOrderOperator):
            count = op_names.GRAPHS[target.name()]
            given = args[1:] if target.name() == "cond" else args
            nodes = [value for value in given[:count] if isinstance(value, torch.fx.Node) and value.op == "get_attr"]
            if len(given) <= count or len(nodes) < count or any(node.target not in self.graphs for node in nodes):
                raise MalformedError(f"a call of {row.target} needs {count} inner graphs of the file as arguments")
        return target
