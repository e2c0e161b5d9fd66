"""Convert a TorchScript graph to Python objects: nodes with attributes, blocks and locations in the user's code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import torch
from attrs import evolve, field, frozen

from pipeline.errors import source_line_in
from pipeline.frozen import FrozenDict

Value: TypeAlias = Any
"""The value of a TorchScript node's output: a tensor, number, string, list, tuple, dict, module or object."""

TorchIR: TypeAlias = Any
"""An object of ``torch._C``: a TorchScript graph, block, node, value, type or module."""


_SCRIPTED = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)')
_TRACED = re.compile(r"^(?P<file>[^\n]+?)\((?P<line>\d+)\): (?P<scope>\S+)$", re.M)
_MARK = re.compile(r"^(?P<code>[^\n]*)\n\s*~+", re.M)
_TRACE_FILE = "torch/jit/_trace.py"


@frozen
class SourceLocation:
    """A TorchScript node's location: its stack trace in Python's format, and the enclosing modules' classes by path."""

    trace: str = ""
    modules: FrozenDict[str, str] = field(factory=FrozenDict)

    @property
    def where(self) -> str:
        """The user's source line as text, such as `model.py:12, y = x + 1`; empty if the graph has no source."""
        return source_line_in({"stack_trace": self.trace})

    @property
    def meta(self) -> dict[str, TorchIR]:
        """The location as ``meta`` of torch.fx nodes: stack trace and enclosing modules."""
        stack = {path: (path, name) for path, name in self.modules.items()}
        return {"nn_module_stack": stack, **({"stack_trace": self.trace} if self.trace else {})}


def stack_traces(nodes: Sequence[TorchIR]) -> list[str]:
    """Return each TorchScript node's stack trace; a node without a trace gets that of the nearest node with one."""
    known = [_stack_trace(node.sourceRange()) for node in nodes]
    last = next(filter(None, known), "")
    return [last := trace or last for trace in known]


def _stack_trace(source: str) -> str:
    """Convert a node's source (code with a marked line, or the frames of a traced call) to a stack trace."""
    if found := _SCRIPTED.search(source.partition("\nSerialized ")[0]):
        marked = _MARK.search(source)
        code = f"\n    {marked['code'].strip()}" if marked else ""
        return f'  File "{found["file"]}", line {found["line"]}, in forward{code}\n'
    frames = list(_TRACED.finditer(source))
    end = next((i for i, frame in enumerate(frames) if frame["file"].endswith(_TRACE_FILE)), len(frames))
    rows = [f'  File "{f["file"]}", line {f["line"]}, in {f["scope"]}\n' for f in reversed(frames[:end])]
    return "".join(rows)


CALL: Final = "pipeline::CallMethod"
"""A temporary kind for nodes that call a module, so that torch, which inlines all other calls, leaves them alone."""


@frozen(eq=False)
class Block:
    """A block of a TorchScript graph: its nodes in order, and the names of its input and output values."""

    inputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]

    def every_node(self) -> Iterator[Node]:
        """Yield every node, including the nodes in nested blocks."""
        for node in self.nodes:
            yield node
            for inner in node.blocks:
                yield from inner.every_node()


@frozen(eq=False)
class Node:
    """One node of a TorchScript graph, with the names of its input and output values.

    kind: the node's kind, such as ``aten::add`` or ``prim::If``.
    overload: ``Tensor`` for ``aten::add.Tensor``, ``default`` for an unnamed overload; empty without a schema.
    types: the types of its outputs as TorchScript prints them; named tuples with their fields.
    attributes: the node's attributes: a constant's value, the name of the attribute that `prim::GetAttr` reads.
    blocks: the branches of an `prim::If`, the body of a `prim::Loop`, the graph of a `prim::fork`.
    """

    kind: str
    overload: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: tuple[str, ...]
    attributes: FrozenDict[str, TorchIR]
    blocks: tuple[Block, ...]
    location: SourceLocation

    @property
    def name(self) -> str:
        """The node's kind with its overload, such as ``aten::add.Tensor``."""
        return f"{self.kind}.{self.overload}" if self.overload else self.kind


@frozen(eq=False)
class Graph:
    """The graph of a method with inlined calls; ``constants`` has its tensor constants by value name."""

    block: Block
    constants: FrozenDict[str, torch.Tensor]


def read_graph(script: TorchIR, method: str = "forward") -> Graph:
    """Return a method of a script module, or a script function, as a `Graph`; the script is not changed."""
    reader = _Reader()
    if isinstance(script, torch.jit.ScriptModule):
        block = reader.read_method(_Receiver("", script), method, SourceLocation())
    else:
        block = reader.read_block(_inline_calls(script.graph, {})[0], _Scope())
    return Graph(block, FrozenDict(reader.constants))


@frozen(eq=False)
class _Receiver:
    """A script module whose method is called, and its path in the outermost module."""

    path: str
    script: TorchIR


@frozen(eq=False)
class _Scope:
    """The context of a block: the prefix of its values' names, its location, and the values that are modules."""

    prefix: str = ""
    location: SourceLocation = field(factory=SourceLocation)
    receivers: dict[str, _Receiver] = field(factory=dict)


def _inline_calls(graph: TorchIR, receivers: Mapping[str, _Receiver]) -> tuple[TorchIR, dict[str, _Receiver]]:
    """Return a copy of ``graph`` with inlined calls of functions and of objects' methods, and {name: module} of the
    copy's inputs that are modules. ``receivers``: the same for ``graph``. Calls of modules are not inlined: the module
    paths that torch records for inlined nodes omit containers."""
    copy = graph.copy()
    given = zip((v.debugName() for v in graph.inputs()), copy.inputs(), strict=True)
    inputs = {v.debugName(): receivers[name] for name, v in given if name in receivers}
    known = dict(inputs)
    for node in list(_nodes_including_nested_blocks(copy)):
        _record_submodule(node, known)
        if node.kind() == "prim::CallMethod" and node.inputsAt(0).debugName() in known:
            call = copy.create(CALL, list(node.inputs()), node.outputsSize())
            call.copyAttributes(node)
            call.copyMetadata(node)
            call.insertBefore(node)
            for old, new in zip(node.outputs(), call.outputs(), strict=True):
                new.setType(old.type())
            node.replaceAllUsesWith(call)
            node.destroy()
    torch._C._jit_pass_inline(copy)
    return copy, inputs


def _nodes_including_nested_blocks(block: TorchIR) -> Iterator[TorchIR]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes_including_nested_blocks(inner)


def _record_submodule(node: TorchIR, receivers: dict[str, _Receiver]) -> None:
    """Record the submodule that a ``prim::GetAttr`` node reads from a module."""
    owner = receivers.get(node.inputsAt(0).debugName()) if node.kind() == "prim::GetAttr" else None
    part = dict(owner.script.named_children()).get(node.s("name")) if owner is not None else None
    if owner is not None and part is not None:
        path = f"{owner.path}.{node.s('name')}".removeprefix(".")
        receivers[node.output().debugName()] = _Receiver(path, part)


class _Reader:
    """Converts TorchScript blocks to `Block` s, and collects their tensor constants."""

    def __init__(self) -> None:
        self.constants: dict[str, torch.Tensor] = {}
        self.methods: dict[tuple[str, str], Block] = {}

    def read_method(self, receiver: _Receiver, name: str, location: SourceLocation) -> Block:
        """Return the block of the method ``name`` of the module ``receiver``; its first input is the module. All calls
        of the method share this block; ``location``: that of the first call."""
        key = receiver.path, name
        if key not in self.methods:
            graph = receiver.script._c._get_method(name).graph
            given = next(iter(graph.inputs())).debugName()
            modules = {**location.modules, receiver.path: str(receiver.script.original_name)}
            inside = evolve(location, modules=FrozenDict(modules))
            copy, own = _inline_calls(graph, {given: receiver})
            self.methods[key] = self.read_block(copy, _Scope(f"{receiver.path}:{name}/", inside, own))
        return self.methods[key]

    def read_block(self, block: TorchIR, scope: _Scope) -> Block:
        """Convert a TorchScript block; value names, which are unique only within a graph, get the scope's prefix."""

        def names(values: TorchIR) -> tuple[str, ...]:
            return tuple(f"{scope.prefix}{value.debugName()}" for value in values)

        nodes = list(block.nodes())
        outer = scope.location
        places = [evolve(outer, trace=trace or outer.trace) for trace in stack_traces(nodes)]
        made = [
            self.read_node(n, names(n.inputs()), names(n.outputs()), evolve(scope, location=p))
            for n, p in zip(nodes, places, strict=True)
        ]
        return Block(names(block.inputs()), tuple(filter(None, made)), names(block.outputs()))

    def read_node(self, node: TorchIR, inputs: tuple[str, ...], outputs: tuple[str, ...], scope: _Scope) -> Node | None:
        """Convert a TorchScript node, or store a tensor constant (not a number) in ``constants`` and return None."""
        _record_submodule(node, scope.receivers)
        kind = node.kind()
        attributes = _node_attributes(node)
        if isinstance(value := attributes.get("value"), torch.Tensor) and not is_single_integer(value):
            self.constants[outputs[0]] = value.detach()
            return None
        kinds = [value.type() for value in node.outputs()]
        types = tuple(str(each.str() if each.kind() == "TupleType" else each.annotation_str) for each in kinds)
        blocks = tuple(self.read_blocks(node, scope))
        kind = "prim::CallMethod" if kind == CALL else kind
        return Node(
            kind, _overload_name(node.schema()), inputs, outputs, types, FrozenDict(attributes), blocks, scope.location
        )

    def read_blocks(self, node: TorchIR, scope: _Scope) -> Iterator[Block]:
        """Yield the blocks of a node: its own blocks, the graphs in its attributes, and the method that it calls."""
        for block in node.blocks():
            yield self.read_block(block, scope)
        if node.kind() == CALL:
            yield self.read_method(scope.receivers[node.inputsAt(0).debugName()], node.s("name"), scope.location)
        for name in node.attributeNames():
            if node.kindOf(name) == "g":
                yield self.read_subgraph(node, node.g(name), scope)

    def read_subgraph(self, node: TorchIR, graph: TorchIR, scope: _Scope) -> Block:
        """Return the block of ``graph``, which a `prim::fork` ``node`` runs. Modules among the node's inputs, known by
        ``scope``, are also known in the block, so that it can call them."""
        pairs = zip(node.inputs(), graph.inputs(), strict=True)
        known = {b.debugName(): r for a, b in pairs if (r := scope.receivers.get(a.debugName())) is not None}
        copy, own = _inline_calls(graph, known)
        return self.read_block(copy, _Scope(f"{scope.prefix}{node.output().debugName()}/", scope.location, own))


def _node_attributes(node: TorchIR) -> dict[str, TorchIR]:
    """Return the attributes of a TorchScript node by name, without those that are graphs."""
    if node.kind() == "prim::Constant":
        return {"value": node.output().toIValue()}
    if node.kind() == "prim::PythonOp":
        return {"function": node.pyobj(), "scalars": node.scalar_args(), "form": node.cconv()}
    found = {name: getattr(node, node.kindOf(name))(name) for name in node.attributeNames() if node.kindOf(name) != "g"}
    return {n: tuple(t.annotation_str for t in v) if node.kindOf(n) == "tys" else v for n, v in found.items()}


def is_single_integer(tensor: torch.Tensor) -> bool:
    """Return whether a tensor constant is a single integer, as in traces of arithmetic on sizes."""
    return tensor.dim() == 0 and tensor.dtype in (torch.int64, torch.int32, torch.bool)


@lru_cache(maxsize=4096)
def _overload_name(schema: str) -> str:
    """Return the overload's name in an operator schema, ``default`` if it has none; empty for a node without schema."""
    if "(" not in schema or schema.startswith("("):
        return ""
    return str(torch._C.parse_schema(schema).overload_name) or "default"
