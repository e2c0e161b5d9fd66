"""Trace decompositions to graph templates, once for each distinct signature of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from attrs import field, frozen
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, free_unbacked_symbols
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from pipeline.aten.graphs import call_graph
from pipeline.aten.naming import origin_of
from pipeline.aten.preserved_composites import composite_of_stand_in
from pipeline.aten.support import function_name
from pipeline.aten.tracing_thread import one_export
from pipeline.aten.types import Argument, Spec, Target
from pipeline.capture.fake_tensors import fake_result_key, suppress_guards
from pipeline.shapes.environment import shape_of


@frozen(eq=False)
class Call:
    """A call of an operator in a graph: its arguments, and the ``meta`` and name of its node."""

    target: Target
    args: Argument
    kwargs: Argument
    meta: Mapping[str, Any]
    name: str | None = None

    @classmethod
    def of_node(cls, node: torch.fx.Node) -> Call:
        """Return the operator call that a node makes."""
        return cls(node.target, node.args, node.kwargs, node.meta, node.name)

    @property
    def value(self) -> Argument:
        """The fake value of the call's result; None if it is unknown."""
        return self.meta.get("val")


@frozen(eq=False)
class Template:
    """The traced graph of a decomposition, with a placeholder for each argument that is a node. It replaces every call
    with the signature ``key``: the decomposition, the operator, and the arguments with their dtypes and sizes."""

    key: str
    graph: torch.fx.Graph


@frozen(eq=False)
class Templates:
    """Traces decompositions in a program's fake mode, and stores the templates by signature."""

    mode: FakeTensorMode
    known: dict[str, torch.fx.GraphModule | str] = field(factory=dict)

    def find(
        self, function: Callable[..., object], target: object, args: object, kwargs: object, expected: object
    ) -> Template | None:
        """Return the traced graph of ``function``, a decomposition of the operator ``target``, for a call with these
        arguments and the fake result ``expected``; None if the decomposition does not apply to the call."""
        found = self.find_or_reason(function, target, args, kwargs, expected)
        return found if isinstance(found, Template) else None

    def find_or_reason(
        self, function: Callable[..., object], target: object, args: object, kwargs: object, expected: object
    ) -> Template | str:
        """Return what `find` returns, or the reason why the decomposition does not apply to the call."""
        flat, spec = tree_flatten((args, kwargs))
        key = f"{function_name(function)} of {target} {fake_result_key(flat)} {spec}"
        if key not in self.known:
            self.known[key] = _trace_decomposition(function, flat, spec, target, self.mode)
        template = self.known[key]
        if isinstance(template, str):
            return template
        return "it fixes a dynamic size" if _specializes_sizes(template, expected) else Template(key, template.graph)


def argument_nodes(args: object, kwargs: object) -> list[torch.fx.Node]:
    """Return the nodes among the arguments of a call, in the order in which a template has placeholders for them."""
    return [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.fx.Node)]


def _trace_decomposition(
    function: Callable[..., object], flat_args: list[Any], spec: Spec, target: object, mode: FakeTensorMode
) -> torch.fx.GraphModule | str:
    """Trace ``function``, a decomposition of the operator ``target``, for a call's arguments: ``flat_args`` and the
    ``spec`` of their pytree. Each node among them becomes a placeholder. Return the reason if the decomposition does
    not apply: it returns NotImplemented, calls ``target`` itself, or needs values or sizes that are unknown."""
    fakes: list[Argument] = []
    for value in (v.meta["val"] for v in flat_args if isinstance(v, torch.fx.Node)):
        # tracing identifies tensors by identity, and nodes from one template share theirs
        shared = isinstance(value, torch.Tensor) and any(value is other for other in fakes)
        fakes.append(value.detach() if shared else value)

    def call(*values: object) -> Argument:
        given = iter(values)
        args, kwargs = tree_unflatten([next(given) if isinstance(v, torch.fx.Node) else v for v in flat_args], spec)
        result = function(*map(_copy_lists, args), **kwargs)
        if result is NotImplemented:
            raise _DoesNotApply
        return tuple(result) if isinstance(result, tuple) else result  # fx would turn named tuples into calls

    with one_export, torch.no_grad(), suppress_guards(mode), enable_python_dispatcher():
        try:
            traced: torch.fx.GraphModule = make_fx(call, tracing_mode="real")(*fakes)
        except _DoesNotApply:
            return "it returned NotImplemented"
        except GuardOnDataDependentSymNode:
            return "its Python code reads a value of a tensor or a size that depends on data"
        called = (n.target for n in traced.graph.nodes if isinstance(n.target, torch._ops.OpOverload))
        if any(target._schema.is_mutable for target in called):  # composites run below functionalization
            traced = make_fx(torch.func.functionalize(traced, remove="mutations"), tracing_mode="real")(*fakes)
    for node in traced.graph.nodes:
        if node.op == "call_function":
            node.target = composite_of_stand_in(node.target)
    _sort_size_reads(traced.graph)
    return next(filter(None, (_reason_against(node, target) for node in traced.graph.nodes)), traced)


def _reason_against(node: torch.fx.Node, target: object) -> str:
    """Return why a traced decomposition of ``target`` with this node is not used; empty if it may be."""
    if node.op == "get_attr":
        is_branch = isinstance(getattr(node.graph.owning_module, str(node.target), None), torch.fx.GraphModule)
        tensor = "it uses a tensor that is no argument: create it inside, from numbers (torch.full)"
        return "it calls control flow (torch.cond)" if is_branch else tensor
    if node.target is target:
        return "it calls the operator itself"
    return "it computes a tensor whose size depends on data" if _introduces_symbols(node) else ""


def _sort_size_reads(graph: torch.fx.Graph) -> None:
    """Sort successive nodes that read sizes, by tensor and dim. Their order in a trace depends on earlier traces in the
    same fake mode, so the first compilation of a program could have another order than the second."""
    position = {node: i for i, node in enumerate(graph.nodes)}

    def key(node: torch.fx.Node) -> tuple[int, object] | None:
        return (position[node.args[0]], node.args[1]) if node.target is torch.ops.aten.sym_size.int else None

    for node in list(graph.nodes):
        while (own := key(node)) and (before := key(node.prev)) and own < before:
            node.prev.prepend(node)


def _copy_lists(value: object) -> object:
    """Return an argument in which lists are copied, since torch's decompositions change lists of indices."""
    return list(map(_copy_lists, value)) if isinstance(value, list) else value


def _introduces_symbols(node: torch.fx.Node) -> bool:
    """Return whether a node of a traced decomposition has a data-dependent size (as ``nonzero`` has) that its inputs
    lack. Such a trace is not used: its symbol is new, while the program has another symbol for this size."""

    def symbols(nodes: Iterable[torch.fx.Node]) -> set[Argument]:
        return {s for n in nodes for v in tree_leaves(n.meta.get("val")) for s in free_unbacked_symbols(v)}

    return node.op == "call_function" and not symbols([node]) <= symbols(node.all_input_nodes)


class _DoesNotApply(Exception):  # noqa: N818 - not an error
    """Raised if a decomposition returns NotImplemented."""


def _specializes_sizes(template: torch.fx.GraphModule, expected: object) -> bool:
    """Return whether a traced decomposition returns an int size where ``expected``, the call's fake result, has a
    dynamic size: some of torch's decompositions specialize on sizes."""
    output = template.graph.output_node()
    made = [v.meta.get("val") if isinstance(v, torch.fx.Node) else v for v in tree_leaves(output.args)]
    pairs = zip(made, tree_leaves(expected), strict=False)
    return any(
        isinstance(m, int) and not isinstance(w, int)
        for a, b in pairs
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        for m, w in zip(shape_of(a), shape_of(b), strict=False)
    )


def copy_calls(
    source: torch.fx.Graph, inputs: Iterable[object], graph: torch.fx.Graph, original: torch.fx.Node
) -> Argument:
    """Add the calls of ``source``, for these inputs, to another graph at its insertion point, and return the results.
    The calls get the source line and module of the node ``original``."""

    def emit(call: torch.fx.Node, args: Argument, kwargs: Argument) -> torch.fx.Node:
        made = graph.create_node("call_function", call.target, args, kwargs)
        made.meta = {**origin_of(original.meta), "val": call.meta.get("val")}
        return made

    return call_graph(source, inputs, emit)
