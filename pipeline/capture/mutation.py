"""Functionalize by rewriting: convert an exported graph with mutation to one without mutation, in linear time.

torch's own functionalization traces the program again. Here each write becomes a new value of the written tensor and,
by the rules in ``views``, of the tensors that it is a view of. Later reads of other views of the same memory recompute
the view from the new value. New values of inputs and buffers become additional outputs, as in torch.export.
"""

from __future__ import annotations

import operator
from contextlib import suppress

import torch
from attrs import evolve
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx.node import map_arg

from pipeline.aten.graphs import graph_module, results_of
from pipeline.aten.naming import make_unique, origin_of
from pipeline.aten.op_predicates import mutates_argument
from pipeline.aten.types import Argument, Node, Target, aten
from pipeline.capture.aliases import UnknownAliasError, describe_as_view, nodes_in_written_memory
from pipeline.capture.fake_tensors import fake_mode, fake_result
from pipeline.capture.views import MULTI_VIEW_OPERATORS, View
from pipeline.errors import CaptureError, source_line
from pipeline.shapes.environment import shape_of

MUTATION_KINDS = {InputKind.BUFFER: OutputKind.BUFFER_MUTATION, InputKind.USER_INPUT: OutputKind.USER_INPUT_MUTATION}
"""The kinds of graph inputs that a program may write to, each with the kind of output that returns the new value."""

FUNCTIONAL_NAMES = {"__iand__": "bitwise_and", "__ior__": "bitwise_or", "__ixor__": "bitwise_xor"}
"""In-place operators (``&=``) whose functional variant is not named like them, with the variant's name."""


def remove_mutation(
    module: torch.fx.GraphModule, signature: ExportGraphSignature
) -> tuple[torch.fx.GraphModule, ExportGraphSignature]:
    """Return a graph without mutation, and a signature with added outputs for new values of inputs and buffers.

    Raises:
        UnknownAliasError: no rule covers a write.
    """
    graph = module.graph
    if any(map(mutates_argument, graph.nodes)):
        rewriter = _MutationRewriter(graph)
        rewriter.copy_without_writes()
        specs = rewriter.append_output_node(signature)
        graph, signature = rewriter.graph, ExportGraphSignature(list(signature.input_specs), specs)
    return _with_functional_subgraphs(module, graph), signature


def _with_functional_subgraphs(module: torch.fx.GraphModule, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """Return a module that runs ``graph`` with the parameters and subgraphs of ``module``, and with writes removed from
    these subgraphs (branches of ``torch.cond``, steps of a scan); the module itself if nothing changes. The body of a
    map (``map_impl``) keeps its writes: `torch.vmap` runs it, which does not support the operators that replace them.
    """
    functional = {}
    for node in graph.find_nodes(op="get_attr"):
        part = getattr(module, node.target, None)
        if isinstance(part, torch.fx.GraphModule):
            is_mapped = any(str(user.target) == "map_impl" for user in node.users)
            made = _with_functional_subgraphs(part, part.graph) if is_mapped else _functionalize_subgraph(part)
            functional.update({} if made is part else {node.target: made})
    if graph is module.graph and not functional:
        return module
    result = graph_module(module, graph)
    for name, made in functional.items():
        setattr(result, name, made)
    return result


def _functionalize_subgraph(subgraph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return a subgraph without writes. It keeps its writes if no rule covers one of them, or if one is to an input."""
    graph = subgraph.graph
    if any(map(mutates_argument, graph.nodes)):
        rewriter = _MutationRewriter(graph)
        with suppress(UnknownAliasError):
            rewriter.copy_without_writes()
            output = next(iter(reversed(graph.nodes)))
            if not any(rewriter.versions[node] for node in graph.find_nodes(op="placeholder")):
                rewriter.graph.output(map_arg(output.args[0], rewriter.current_value)).meta = dict(output.meta)
                graph = rewriter.graph
    return _with_functional_subgraphs(subgraph, graph)


class _MutationRewriter:
    """Copies a graph without its writes: each write becomes a new node with the value after the write.

    ``env``: the new node of each old node. ``views``: the viewed node and the call of each view of written memory.
    ``versions``: the number of writes so far, by the node that owns the memory. ``made_at``: the version for which
    ``env`` was computed; a view with an older one is stale. ``same``: the written node that an in-place call returns.
    """

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.old, self.graph = graph, torch.fx.Graph()
        self.mode, self.touched = fake_mode(graph), nodes_in_written_memory(graph)
        self.env: dict[Node, Node] = {}
        self.views: dict[Node, View] = {}
        self.same: dict[Node, Node] = {}
        self.made_at: dict[Node, int] = {}
        self.versions: dict[Node, int] = {}
        self.current = next(iter(graph.nodes))
        self.taken = {node.name for node in graph.nodes}

    def copy_without_writes(self) -> None:
        """Copy all nodes except the output node; replace each in-place write by a new value of the written node."""
        for node in list(self.old.nodes)[:-1]:
            self.current = node
            if not mutates_argument(node):
                self.copy_node(node)
                continue
            written = _node_written_by(node)
            written = self.same[node] = self.same.get(written, written)
            if node.target is not aten.detach_.default:
                self.set_written_value(written, self.value_after_write(node, written))

    def copy_node(self, node: Node) -> None:
        """Copy a node that writes no memory; its arguments become their current values."""
        found = describe_as_view(node, self.mode) if node in self.touched else None
        self.env[node] = made = self.graph.node_copy(node, self.current_value)
        made.name = node.name  # fx would rename a node called "input", to which the signature refers
        if found is not None:
            args = map_arg(found.args, self.current_value)
            self.views[node] = evolve(found, args=args, source=self.same.get(found.source, found.source))
        first: Argument = node.args[0] if node.args else None
        if node.target is operator.getitem and first in self.made_at:  # all pieces of a tensor are made at once
            self.made_at[node] = self.made_at[first]
        else:
            source = first if node.target in MULTI_VIEW_OPERATORS else node
            self.made_at[node] = self.versions.get(self.memory_owner(self.same.get(source, source)), 0)
        self.versions.setdefault(self.memory_owner(node), 0)

    def value_after_write(self, in_place_call: Node, written: Node) -> Node:
        """Return a new node with the value of ``written`` after an in-place call: ``add(x, 1)`` for ``add_(x, 1)``."""
        if in_place_call.target is aten.copy_.default and self._is_removable_copy(in_place_call):
            return self.current_value(in_place_call.args[1])  # type: ignore[arg-type]
        target = functional_variant(in_place_call.target)
        if target is None:
            raise UnknownAliasError(in_place_call)
        args, kwargs = map_arg((in_place_call.args, dict(in_place_call.kwargs)), self.current_value)
        before = written.meta["val"]
        made = before if _keeps_dtype(in_place_call) else fake_result(self.mode, target, args, kwargs)
        if shape_of(made) != shape_of(before):
            raise UnknownAliasError(in_place_call)
        value = self.append_call(target, *args, val=made, **kwargs)
        value.name = in_place_call.name
        cast = made.dtype != before.dtype
        return self.append_call(aten._to_copy.default, value, val=before, dtype=before.dtype) if cast else value

    def _is_removable_copy(self, node: Node) -> bool:
        """Return whether the source of a ``copy_`` can become the written tensor itself: both have the same dtype,
        sizes and device, nothing else reads the source, and its memory is not that of an input or buffer."""
        source = node.args[1]
        if not isinstance(source, Node) or len(source.users) > 1:
            return False
        if self.memory_owner(self.same.get(source, source)).op == "placeholder":
            return False
        made, given = node.meta["val"], source.meta["val"]
        return made.dtype == given.dtype and shape_of(made) == shape_of(given) and made.device == given.device

    def set_written_value(self, node: Node, new_value: Node) -> None:
        """Set the value of a written node; if it is a view, also compute new values of the tensors that it views."""
        root = self.memory_owner(node)
        before: list[tuple[Node, Node]] = []
        while node in self.views:
            source = self.views[node].source
            before.append((node, self.current_value(source)))
            node = source
        self.versions[root] += 1
        for viewing, source_value in before:
            self.env[viewing], self.made_at[viewing] = new_value, self.versions[root]
            found = self.views[viewing].update_source(self.append_call, source_value, new_value)
            if found is None:
                raise UnknownAliasError(viewing)
            new_value = found
        self.env[root], self.made_at[root] = new_value, self.versions[root]

    def current_value(self, node: Node) -> Node:
        """Return the new graph's node for an old node after all writes so far; recompute stale views."""
        node = self.same.get(node, node)
        stale = []
        while node in self.views and self.made_at[node] != self.versions[self.memory_owner(node)]:
            stale.append(node)
            node = self.views[node].source
        for viewing in reversed(stale):
            self.env[viewing] = self.views[viewing].recompute(self.append_call, self.env[self.views[viewing].source])
            self.made_at[viewing] = self.versions[self.memory_owner(viewing)]
        return self.env[stale[0] if stale else node]

    def memory_owner(self, node: Node) -> Node:
        """Return the node whose memory a node uses: for a view of a view of ``x``, ``x``; else the node itself."""
        while node in self.views:
            node = self.views[node].source
        return node

    def append_call(self, target: Target, *args: Argument, val: object, **kwargs: Argument) -> Node:
        """Append a call to the new graph, with the fake value ``val`` and the metadata of the old node being copied."""
        node = self.graph.call_function(target, args, kwargs)
        node.name = make_unique(f"{self.current.name}_{target._opname}", self.taken)
        node.meta = {**origin_of(self.current.meta), "val": val}
        return node

    def append_output_node(self, signature: ExportGraphSignature) -> list[OutputSpec]:
        """Append the output node: new values of inputs and buffers, then the outputs; return the output specs."""
        specs = {spec.arg.name: spec for spec in signature.input_specs}
        written = [n for n in self.old.nodes if n.op == "placeholder" and self.versions[n]]
        values = [self.env[node] for node in written]
        given = [map_arg(value, self.current_value) for value in results_of(self.old)]
        self.graph.output((*values, *given)).meta = dict(next(iter(reversed(self.old.nodes))).meta)
        changes = [_mutation_output_spec(specs[node.name], value) for node, value in zip(written, values, strict=True)]
        return [*changes, *signature.output_specs]


def _mutation_output_spec(written_input: InputSpec, new_value: Node) -> OutputSpec:
    """Return the spec of the output for the new value of a written input or buffer; raise an error for others."""
    if written_input.kind == InputKind.CONSTANT_TENSOR:
        where = source_line(new_value)
        why = f"the model writes to {written_input.target}, a tensor that is not a buffer{where and f' ({where})'}"
        name = str(written_input.target).rpartition(".")[2]
        raise CaptureError(why, f"make it a buffer: self.register_buffer({name!r}, …)")
    if written_input.kind not in MUTATION_KINDS:
        raise UnknownAliasError(new_value)
    target = written_input.target if written_input.kind == InputKind.BUFFER else written_input.arg.name
    return OutputSpec(MUTATION_KINDS[written_input.kind], TensorArgument(new_value.name), target)


def _node_written_by(in_place_call: Node) -> Node:
    """Return the node that an in-place operator changes: its first argument, or else raise `UnknownAliasError`."""
    mutable = [a.alias_info is not None and a.alias_info.is_write for a in in_place_call.target._schema.arguments]  # type: ignore[union-attr]
    in_place = in_place_call.target is aten.detach_.default or torch.Tag.inplace_view not in in_place_call.target.tags  # type: ignore[union-attr]
    first = in_place_call.args[0] if in_place_call.args else None
    if mutable[:1] != [True] or any(mutable[1:]) or not in_place or not isinstance(first, Node):
        raise UnknownAliasError(in_place_call)
    return first


def functional_variant(in_place_operator: object) -> Argument:
    """Return the functional variant of an in-place operator (``add`` for ``add_``); None if there is none."""
    name, _, overload = str(in_place_operator).removeprefix("aten.").partition(".")
    name = FUNCTIONAL_NAMES.get(name, name.removesuffix("_") if name.endswith("_") else "")
    packet = getattr(torch.ops.aten, name, None) if name else None
    overloads = packet.overloads() if packet is not None else []
    found = (getattr(packet, o) for o in sorted(overloads, key=lambda o: o != overload))
    return next((f for f in found if _argument_types(f) == _argument_types(in_place_operator)), None)


def _argument_types(target: Target) -> list[tuple[str, bool]]:
    """Return, for each argument of an operator, its type and whether it may be omitted."""
    return [(str(argument.type), argument.has_default_value()) for argument in target._schema.arguments]


def _keeps_dtype(node: Node) -> bool:
    """Return whether the operands of an in-place operator cannot promote its result to another dtype."""
    values = [n.meta.get("val") for n in node.all_input_nodes]
    dtypes = {v.dtype for v in values if isinstance(v, torch.Tensor)}
    others = [a for a in (*node.args, *node.kwargs.values()) if not isinstance(a, Node)]
    return len(dtypes) == 1 and dtypes.pop().is_floating_point and not any(isinstance(a, complex) for a in others)
