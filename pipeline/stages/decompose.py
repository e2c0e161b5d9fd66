"""decompose: ``Program`` → ``Program``. ATen becomes the opset the registry knows, and constants are folded.

Before: any functional ATen graph. After: each operator is one that a converter takes, or one that nothing can take
apart. What depends on parameters alone is a placeholder with a recipe; dead nodes are gone. No tensor is computed here.

An operator is decomposed by tracing its decomposition on the node's fake tensors, once for each distinct signature; the
other nodes are copied, so the cost follows the number of different operators, not the size of the graph. Convolutions
differ at every layer, and are ``aten.convolution`` by another name: they are renamed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from attrs import field, frozen
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, free_unbacked_symbols
from torch.fx.node import map_arg
from torch.utils._pytree import tree_flatten, tree_unflatten

from pipeline.aten.arguments import bind
from pipeline.aten.graphs import copied_node
from pipeline.aten.naming import origin
from pipeline.aten.support import Choice, function_name
from pipeline.aten.whole import meant
from pipeline.converters.decompositions import DecompositionTable, torch_enabled_decompositions
from pipeline.converters.experts import known_as
from pipeline.converters.lookup import kept_in_torch
from pipeline.converters.registry import ConverterRegistry
from pipeline.decomposition.complex import ComplexValues, has_complex
from pipeline.decomposition.complex_rules import RULES, settled
from pipeline.decomposition.fold import fold
from pipeline.errors import ConversionError, line_of, worded
from pipeline.frontend.fakes import fake_mode, quietly, signature
from pipeline.program import Program, is_operator
from pipeline.shapes.environment import shape_of

aten = torch.ops.aten


_CONVOLUTIONS = frozenset(
    {
        *(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default),
        *(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input),
    }
)


@frozen
class Decompose:
    """The stage. A node's fate, in order: our own decomposition; a converter that takes it; torch's decomposition.
    That of a node with complex values: its rule on pairs of reals; torch's decomposition."""

    registry: ConverterRegistry = field(repr=False)
    decompositions: DecompositionTable = field(repr=False)
    name: str = "decompose"

    def __call__(self, program: Program) -> Program:
        """The program in the registry's opset, constants folded."""
        graph = _Rewriter(program, self.registry, self.decompositions).rewrite()
        return fold(program.with_graph(graph, source=program.source or program.as_source()))


class _Rewriter:
    """Copies a graph node by node, putting the traced decomposition in place of a node where one applies."""

    def __init__(self, program: Program, registry: ConverterRegistry, own: DecompositionTable) -> None:
        self.program, self.own = program, own
        self.lookup = registry.bind(program.settings)
        self.graph = torch.fx.Graph()
        self.templates: dict[str, torch.fx.GraphModule | None] = {}
        self.mode = fake_mode(program.graph)
        self.enabled = _torch_decompositions()
        self.complex = ComplexValues(self.graph, self.mode, self.emit)

    def rewrite(self) -> torch.fx.Graph:
        env: dict[torch.fx.Node, Any] = {}
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                args, kwargs = map_arg((node.args, dict(node.kwargs)), env.__getitem__)
                env[node] = self.emit(node.target, args, kwargs, node.meta, node.name)
            else:
                env[node] = copied_node(node, self.graph, env.__getitem__)
        return self.graph

    def emit(self, target: Any, args: Any, kwargs: Any, meta: Mapping[str, Any], name: str | None = None) -> Any:
        """The value of a call in the new graph: a node, or what its decomposition gives."""
        if target is operator.getitem and isinstance(args[0], (tuple, list)):
            return args[0][args[1]]
        is_complex = has_complex(args, kwargs, meta.get("val"))
        function = (RULES if is_complex else self.own).get(known_as(target))
        if function is not None and not self.lookup.settings.runs_in_torch(target, ""):
            inline = self.inline_pairs if is_complex else self.inline_own
            inlined = inline(target, function, args, kwargs, meta, name)
            if inlined is not None:
                return inlined[0]
        node = self.graph.create_node("call_function", target, tuple(args), dict(kwargs), name)
        node.meta = {**origin(meta), "val": meta.get("val")}
        if (
            not is_operator(node)
            or (not is_complex and isinstance(self.lookup.choose(node), Choice))
            or kept_in_torch(node, self.lookup.settings)
        ):
            return node
        convolution = _as_convolution(node)
        if convolution is not None:
            self.graph.erase_node(node)
            return self.emit(aten.convolution.default, convolution, {}, node.meta)
        decomposition = self.decomposition(target)
        inlined = decomposition and self.inline(target, decomposition, args, kwargs, meta)
        if not inlined:
            return node
        self.graph.erase_node(node)
        return inlined[0]

    def inline_own(
        self,
        target: Any,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        meta: Mapping[str, Any],
        name: str | None,
    ) -> tuple[Any] | None:
        """`inline` of a registered decomposition, which may be a user's: what it does wrong is told by its name."""
        try:
            inlined = self.inline(target, function, args, kwargs, meta)
            if inlined is not None:
                _check(inlined[0], meta.get("val"))
            return inlined
        except ConversionError:
            raise
        except Exception as error:
            why = f"its decomposition {function_name(function)} is wrong: {worded(error)}"
            raise ConversionError(name or str(target), str(target), line_of(meta), why) from error

    def inline_pairs(
        self, target: Any, rule: Callable[..., Any], args: Any, kwargs: Any, meta: Mapping[str, Any], name: str | None
    ) -> tuple[Any] | None:
        """The outputs of an operator's rule on pairs, put together where they are complex; None if there is none."""
        where = origin(meta)
        args, kwargs = self.complex.apart((args, kwargs), where)
        inlined = self.inline(rule, settled(rule, meta["val"]), args, kwargs, where)
        return inlined and (self.complex.together(inlined[0], where),)

    def decomposition(self, target: Any) -> Callable[..., Any] | None:
        """torch's way to take the operator apart, if it has one that we use."""
        if not isinstance(target, torch._ops.OpOverload):
            return None
        if target in self.enabled:
            return self.enabled[target]
        return target if _is_composite(target) else None

    def inline(
        self, target: Any, function: Callable[..., Any], args: Any, kwargs: Any, meta: Mapping[str, Any]
    ) -> tuple[Any] | None:
        """The outputs of the decomposition, emitted into the new graph; None if it does not apply here."""
        flat, spec = tree_flatten((args, kwargs))
        nodes = [v for v in flat if isinstance(v, torch.fx.Node)]
        key = f"{function_name(function)} of {target} {signature(flat)} {spec}"
        if key not in self.templates:
            self.templates[key] = _trace(function, flat, spec, target, self.mode)
        template = self.templates[key]
        if template is None or _bakes_in(template, meta.get("val")):
            return None
        env: dict[torch.fx.Node, Any] = {}
        given = iter(nodes)
        for node in template.graph.nodes:
            if node.op == "placeholder":
                env[node] = next(given)
            elif node.op == "output":
                return (map_arg(node.args[0], env.__getitem__),)
            else:
                new = {**origin(meta), "val": node.meta.get("val")}
                target = meant(node.target)
                env[node] = self.emit(target, *map_arg((node.args, dict(node.kwargs)), env.__getitem__), new)
        raise AssertionError("a graph without an output")


def _as_convolution(node: torch.fx.Node) -> tuple[Any, ...] | None:
    """The arguments of ``aten.convolution`` for what is a convolution by another name, and needs no trace to tell."""
    if node.target not in _CONVOLUTIONS:
        return None
    x, weight, bias, stride, padding, *rest = bind(node.target, node.args, node.kwargs)
    dims = x.meta["val"].dim() - 2
    output_padding, groups, dilation = rest if len(rest) == 3 else ([0] * dims, rest[1], rest[0])
    spatial = (stride, padding, dilation, output_padding)
    if weight.meta["val"].dim() != dims + 2 or not all(isinstance(v, list) and len(v) == dims for v in spatial):
        return None  # without a batch, or one number for all dims
    return x, weight, bias, stride, padding, dilation, len(rest) == 3, output_padding, groups


def _torch_decompositions() -> Mapping[Any, Callable[..., Any]]:
    return {op: torch._decomp.decomposition_table[op] for op in torch_enabled_decompositions}


def _is_composite(target: torch._ops.OpOverload) -> bool:
    name = target.name()
    return torch._C._dispatch_has_kernel(name) and torch._C._dispatch_has_kernel_for_dispatch_key(
        name, "CompositeImplicitAutograd"
    )


def _trace(
    function: Callable[..., Any], flat: list[Any], spec: Any, target: Any, mode: FakeTensorMode
) -> torch.fx.GraphModule | None:
    """The decomposition's graph over the nodes among ``flat``; None where it gives the operator itself back."""
    fakes = _told_apart([v.meta["val"] for v in flat if isinstance(v, torch.fx.Node)])

    def call(*values: Any) -> Any:
        given = iter(values)
        args, kwargs = tree_unflatten([next(given) if isinstance(v, torch.fx.Node) else v for v in flat], spec)
        result = function(*map(_own_lists, args), **kwargs)
        if result is NotImplemented:
            raise _DoesNotApply
        return tuple(result) if isinstance(result, tuple) else result  # of named tuples fx would make calls

    with torch.no_grad(), quietly(mode), enable_python_dispatcher():
        try:
            traced: torch.fx.GraphModule = make_fx(call, tracing_mode="real")(*fakes)
        except (_DoesNotApply, GuardOnDataDependentSymNode):
            return None
        if any(_mutates(n) for n in traced.graph.nodes):  # the trace, since composites run below functionalization
            traced = make_fx(torch.func.functionalize(traced, remove="mutations"), tracing_mode="real")(*fakes)
    if any(n.op == "get_attr" or n.target is target or _makes_symbols(n) for n in traced.graph.nodes):
        return None
    return traced


def _own_lists(value: Any) -> Any:
    """An argument whose lists may be written to, as decompositions of torch's write to those of indices."""
    return list(map(_own_lists, value)) if isinstance(value, list) else value


def _makes_symbols(node: torch.fx.Node) -> bool:
    """Whether a node brings a size into being that depends on its data: the program has another name for it."""

    def symbols(nodes: Iterable[torch.fx.Node]) -> set[Any]:
        return {s for n in nodes for v in tree_flatten(n.meta.get("val"))[0] for s in free_unbacked_symbols(v)}

    return node.op == "call_function" and not symbols([node]) <= symbols(node.all_input_nodes)


def _told_apart(fakes: list[Any]) -> list[Any]:
    """Each placeholder gets a fake tensor object of its own: tracing tells tensors apart by identity, and nodes that
    came from one template share theirs."""
    return [
        f.detach() if isinstance(f, torch.Tensor) and any(f is g for g in fakes[:i]) else f for i, f in enumerate(fakes)
    ]


class _DoesNotApply(Exception):  # noqa: N818 - not an error
    """A decomposition gave NotImplemented."""


def _check(made: Any, expected: Any) -> None:
    """Raise where a decomposition gives other tensors than its operator: in number, dtype, rank or size."""
    several = isinstance(expected, tuple | list)
    given, wanted = (made if isinstance(made, tuple | list) else [made]), (expected if several else [expected])
    if isinstance(made, tuple | list) != several or len(given) != len(wanted):
        raise RuntimeError(f"it gives {_shown(made)}, the operator {_shown(expected)}")
    for a, b in zip(given, wanted, strict=True):
        value = a.meta.get("val") if isinstance(a, torch.fx.Node) else a
        unused = value is None and several
        if isinstance(b, torch.Tensor) and not unused and not _alike(value, b):
            raise RuntimeError(f"it gives {_shown(value)}, the operator {_shown(b)}")


def _alike(value: Any, expected: torch.Tensor) -> bool:
    if not isinstance(value, torch.Tensor) or value.dtype != expected.dtype or value.dim() != expected.dim():
        return False
    sizes = zip(shape_of(value), shape_of(expected), strict=True)
    return all(a == b for a, b in sizes if isinstance(a, int) and isinstance(b, int))


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"{len(value)} results"
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _bakes_in(template: torch.fx.GraphModule, expected: Any) -> bool:
    """Whether the trace took the size of a dynamic dim for a constant: some of torch's decompositions do."""
    output = next(iter(reversed(template.graph.nodes)))
    made = [v.meta.get("val") if isinstance(v, torch.fx.Node) else v for v in tree_flatten(output.args)[0]]
    wanted, _ = tree_flatten(expected)
    pairs = zip(made, wanted, strict=False)
    return any(
        isinstance(m, int) and not isinstance(w, int)
        for a, b in pairs
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        for m, w in zip(shape_of(a), shape_of(b), strict=False)
    )


def _mutates(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
