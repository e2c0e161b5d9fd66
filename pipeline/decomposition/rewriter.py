"""Copy a graph node by node, with traced decompositions in place of the nodes that they apply to."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Mapping
from typing import Any, TypeAlias

import torch
from torch.fx.node import map_arg

from pipeline.aten.arguments import bind
from pipeline.aten.graphs import copied_node, pasted
from pipeline.aten.naming import origin
from pipeline.aten.support import function_name
from pipeline.aten.traits import Does, does
from pipeline.aten.types import Argument, Target, aten
from pipeline.capture.fake_tensors import fake_mode
from pipeline.converters.lookup import kept_in_torch
from pipeline.converters.matmul import grouped_mm, is_faster_in_torch, known_as
from pipeline.converters.user_registrations import Claims
from pipeline.decomposition.candidates import Function, Ways, check_results
from pipeline.decomposition.complex import ComplexValues, has_complex
from pipeline.decomposition.complex_rules import RULES, settled
from pipeline.decomposition.composite_contents import Contents
from pipeline.decomposition.control_flow import ControlFlow
from pipeline.decomposition.fold import is_constant
from pipeline.decomposition.templates import Template, Templates, nodes_of
from pipeline.errors import ConversionError, line_of, worded
from pipeline.frozen import FrozenDict
from pipeline.program import Program, is_operator
from pipeline.shapes.environment import bounds, shape_of

Accepts: TypeAlias = Callable[[torch.fx.Node], bool]


class Rewriter:
    """One rewriting of a program's graph. ``applied``: the operators whose registered decomposition was used."""

    def __init__(self, program: Program, claims: Claims, ways: Ways) -> None:
        self.program, self.claims, self.ways = program, claims, ways
        self.graph = torch.fx.Graph()
        self.mode = fake_mode(program.graph)
        self.templates = Templates(self.mode)
        self.contents = Contents(program, self.templates, ways, self.is_claimed)
        self.control_flow = ControlFlow(self.graph, self.templates, self.emit, self.is_kept)
        self.complex = ComplexValues(self.graph, self.mode, self.emit)
        self.constant: dict[torch.fx.Node, bool] = {}
        self.applied: set[object] = set()
        self.open: set[str] = set()

    def rewrite(self) -> torch.fx.Graph:
        """Rewrite the whole graph in the registry's opset."""

        def transform(node: torch.fx.Node, args: Argument, kwargs: Argument) -> Argument:
            written = self.control_flow.written(node, args)
            return self.emit(node.target, args, kwargs, node.meta, node.name) if written is None else written

        return self._transformed(transform)

    def is_kept(self, node: torch.fx.Node) -> bool:
        """Return whether the user's settings leave a node in PyTorch, or a user's converter or decomposition may accept
        it."""
        target, value = node.target, node.meta.get("val")
        users = self.is_claimed(target, node.args, node.kwargs, value) or self.ways.own(target) is not None
        return users or kept_in_torch(target, node.meta, self.claims.lookup.settings)

    def take_apart(self, refused: Container[str]) -> torch.fx.Graph:
        """Rewrite these nodes as if the user had no converter for them, and copy all others."""

        def transform(node: torch.fx.Node, args: object, kwargs: object) -> Argument:
            if node.name in refused or node.target is operator.getitem:
                return self.emit(node.target, args, kwargs, node.meta, node.name, refused=True)
            return self.add(node.target, args, kwargs, node.meta, node.name)

        return self._transformed(transform)

    def _transformed(self, transform: Callable[[torch.fx.Node, Argument, Argument], object]) -> torch.fx.Graph:
        env: dict[torch.fx.Node, Argument] = {}
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                args, kwargs = map_arg((node.args, dict(node.kwargs)), env.__getitem__)
                env[node] = transform(node, args, kwargs)
            else:
                env[node] = copied_node(node, self.graph, env.__getitem__)
                self.note(env[node])
        return self.graph

    def is_claimed(self, target: object, args: object, kwargs: object, value: object) -> bool:
        """Return whether the user has a HIGH converter that may accept a call, or a decomposition of its operator."""
        return target in self.claims.decomposed or self.claims.keeps(target, args, kwargs, value)

    def emit(
        self,
        target: Target,
        args: Argument,
        kwargs: Argument,
        meta: Mapping[str, object],
        name: str | None = None,
        refused: bool = False,
    ) -> Argument:
        """Add a call to the new graph and return its value: a node, or the result of its decomposition."""
        if target is operator.getitem and isinstance(args[0], (tuple, list)):
            return args[0][args[1]]
        if kept_in_torch(target, meta, self.claims.lookup.settings) or self.is_left(target, args):
            return self.add(target, args, kwargs, meta, name)
        if has_complex(args, kwargs, meta.get("val")):
            inlined = self.inline_pairs(target, args, kwargs, meta)
            return inlined[0] if inlined else self.settle(target, args, kwargs, meta, name, lambda node: False)
        if not refused and self.claims.keeps(target, args, kwargs, meta.get("val")):
            return self.add(target, args, kwargs, meta, name)
        inlined = self.inline_first(target, args, kwargs, meta, name)
        accepts = self.claims.accepts_without_users if refused else self.claims.accepts
        return inlined[0] if inlined else self.settle(target, args, kwargs, meta, name, accepts)

    def is_left(self, target: Target, args: Argument) -> bool:
        """Return whether our decomposition of a grouped matmul would be slower than PyTorch's operator, and the
        settings allow PyTorch."""
        if self.ways.own(target) is not grouped_mm or self.program.settings.require_full_compilation:
            return False
        (rows, _), matrices = shape_of(args[0].meta["val"]), shape_of(args[1].meta["val"])
        tuned = [bounds(rows, {**self.program.shapes, **each}).opt for each in self.program.profiles or (FrozenDict(),)]
        return all(isinstance(size, int) for size in matrices) and is_faster_in_torch(tuned, matrices)

    def add(
        self, target: Target, args: Argument, kwargs: Argument, meta: Mapping[str, object], name: str | None = None
    ) -> torch.fx.Node:
        """Add a node to the new graph."""
        node = self.graph.create_node("call_function", target, tuple(args), dict(kwargs), name)
        node.meta = {**origin(meta), "val": meta.get("val")}
        self.note(node)
        return node

    def note(self, node: torch.fx.Node) -> None:
        """Record whether a node is constant, if that is needed later."""
        if self.claims.targets:
            self.constant[node] = is_constant(node, self.constant, self.program)

    def settle(
        self, target: Target, args: Argument, kwargs: Argument, meta: Any, name: str | None, accepts: Accepts
    ) -> object:
        """Return the call itself if a converter accepts it or nothing decomposes it; else the result of torch's
        decomposition."""
        node = self.add(target, args, kwargs, meta, name)
        if not is_operator(node) or accepts(node):
            return node
        convolution = None if target in self.ways.disabled else _as_convolution(node)
        if convolution is not None:
            self.graph.erase_node(node)
            return self.emit(aten.convolution.default, convolution, {}, node.meta)
        decomposition = self.ways.torchs(target)
        inlined = decomposition and self.inline(target, decomposition, args, kwargs, meta)
        if not inlined:
            return node
        self.graph.erase_node(node)
        return inlined[0]

    def inline_first(
        self, target: object, args: object, kwargs: object, meta: Mapping[str, object], name: str | None
    ) -> tuple[object] | None:
        """Decompose a call before converters are tried, if it leads to a user's operator or has a registered
        decomposition."""
        claimed = bool(self.claims.targets)
        way = self.contents.way(target, args, kwargs, meta.get("val"), self.constant) if claimed else None
        own = self.ways.own(target)
        if way is not None and way is not own:
            return self.inline(target, way, args, kwargs, meta)
        return own and self.inline_own(target, own, args, kwargs, meta, name)

    def inline_own(
        self,
        target: object,
        function: Function,
        args: object,
        kwargs: object,
        meta: Mapping[str, object],
        name: str | None,
    ) -> tuple[object] | None:
        """Call `inline` for a registered decomposition, which may be a user's: errors name it."""
        try:
            inlined = self.inline(target, function, args, kwargs, meta)
            if inlined is not None:
                check_results(inlined[0], meta.get("val"))
                self.applied.add(known_as(target))
            return inlined
        except ConversionError:
            raise
        except Exception as error:
            module = str(getattr(function, "__module__", "")).partition(".")[0]
            whose = {"torch": "PyTorch's", "pipeline": "pipeline's"}.get(module)
            own = f"its decomposition {function_name(function)} is wrong"
            why = f"{whose} decomposition of it fails: {worded(error)}" if whose else f"{own}: {worded(error)}"
            raise ConversionError(name or str(target), str(target), line_of(meta), why) from error

    def inline_pairs(
        self, target: object, args: object, kwargs: object, meta: Mapping[str, object]
    ) -> tuple[object] | None:
        """Return the outputs of an operator's rule on pairs, joined where they are complex; None if it has no rule."""
        rule = RULES.get(known_as(target))
        if rule is None:
            return None
        where = origin(meta)
        args, kwargs = self.complex.apart((args, kwargs), where)
        inlined = self.inline(rule, settled(rule, meta["val"]), args, kwargs, where)
        return inlined and (self.complex.together(inlined[0], where),)

    def inline(
        self, target: object, function: Function, args: object, kwargs: object, meta: Mapping[str, object]
    ) -> tuple[object] | None:
        """Emit a decomposition into the new graph and return its outputs; None if it does not apply, or would recurse:
        torch's composites end at operators that our decompositions express by composites."""
        template = self.templates.of(function, target, args, kwargs, meta.get("val"))
        if template is None or template.key in self.open:
            return None
        self.open.add(template.key)
        try:
            return (self.pasted(template, args, kwargs, meta),)
        finally:
            self.open.remove(template.key)

    def pasted(self, template: Template, args: object, kwargs: object, meta: Mapping[str, object]) -> object:
        """Return the results of a template for a call's arguments."""

        def emit(node: torch.fx.Node, args: object, kwargs: object) -> Argument:
            return self.emit(node.target, args, kwargs, {**origin(meta), "val": node.meta.get("val")})

        return pasted(template.graph, nodes_of(args, kwargs), emit)


def _as_convolution(node: torch.fx.Node) -> tuple[object, ...] | None:
    """Return the arguments of ``aten.convolution`` for another convolution operator, without a trace; None if it needs
    one."""
    if does(node.target) is not Does.CONVOLVES:
        return None
    x, weight, bias, stride, padding, *rest = bind(node.target, node.args, node.kwargs)
    if len(rest) > 3:
        return None  # aten.convolution itself
    dims = x.meta["val"].dim() - 2
    output_padding, groups, dilation = rest if len(rest) == 3 else ([0] * dims, rest[1], rest[0])
    spatial = (stride, padding, dilation, output_padding)
    if weight.meta["val"].dim() != dims + 2 or not all(isinstance(v, list) and len(v) == dims for v in spatial):
        return None  # without a batch, or one number for all dims
    return x, weight, bias, stride, padding, dilation, len(rest) == 3, output_padding, groups
