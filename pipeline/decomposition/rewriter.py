"""Copy a graph node by node, replacing nodes by their traced decompositions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container

import torch
from torch.fx.node import map_arg

from pipeline.aten.arguments import bind
from pipeline.aten.graphs import copied_node, pasted
from pipeline.aten.naming import origin
from pipeline.aten.support import function_name
from pipeline.aten.traits import Does, does
from pipeline.aten.types import Argument, Function, Node, aten
from pipeline.capture.fake_tensors import fake_mode
from pipeline.converters.attention import is_slow
from pipeline.converters.lookup import kept_in_torch
from pipeline.converters.matmul import grouped_mm, is_faster_in_torch, known_as
from pipeline.converters.user_registrations import Claims
from pipeline.decomposition.candidates import Contents, Ways, check_results
from pipeline.decomposition.complex import ComplexValues, has_complex
from pipeline.decomposition.complex_rules import RULES, settled
from pipeline.decomposition.control_flow import ControlFlow
from pipeline.decomposition.fold import is_constant
from pipeline.decomposition.templates import Call, Templates, nodes_of
from pipeline.errors import ConversionError, error_text, source_line_in
from pipeline.frozen import FrozenDict
from pipeline.program import Program, is_operator
from pipeline.shapes.environment import bounds, shape_of


class Rewriter:
    """The rewriting of a program's graph. ``applied``: the operators whose registered decomposition was used."""

    def __init__(self, program: Program, claims: Claims, ways: Ways) -> None:
        self.program, self.claims, self.ways = program, claims, ways
        self.settings = claims.lookup.settings
        self.graph = torch.fx.Graph()
        self.mode = fake_mode(program.graph)
        self.templates = Templates(self.mode)
        self.contents = Contents(program, self.templates, ways, self.is_claimed)
        self.control_flow = ControlFlow(self.graph, self.templates, self.emit, self.is_kept)
        self.complex = ComplexValues(self.graph, self.mode, self.emit)
        self.constant: dict[Node, bool] = {}
        self.applied: set[object] = set()
        self.open: set[str] = set()

    def rewrite(self) -> torch.fx.Graph:
        """Rewrite the whole graph into the registry's opset."""

        def transform(node: Node, call: Call) -> Argument:
            written = self.control_flow.written(node, call.args)
            return self.emit(call) if written is None else written

        return self._transformed(transform)

    def is_kept(self, node: Node) -> bool:
        """Return whether a node is not decomposed: settings run it in PyTorch, or a user's converter may accept it."""
        users = self.is_claimed(Call.of(node)) or self.ways.own(node.target) is not None
        return users or kept_in_torch(node.target, node.meta, self.settings)

    def take_apart(self, refused: Container[str]) -> torch.fx.Graph:
        """Decompose these nodes as if the user had no converter for them, and copy all other nodes."""

        def transform(node: Node, call: Call) -> Argument:
            apart = node.name in refused or node.target is operator.getitem
            return self.emit(call, refused=True) if apart else self.add(call)

        return self._transformed(transform)

    def _transformed(self, transform: Callable[[Node, Call], Argument]) -> torch.fx.Graph:
        env: dict[Node, Argument] = {}
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                args, kwargs = map_arg((node.args, dict(node.kwargs)), env.__getitem__)
                env[node] = transform(node, Call(node.target, args, kwargs, node.meta, node.name))
            else:
                env[node] = copied_node(node, self.graph, env.__getitem__)
                self.note(env[node])
        return self.graph

    def is_claimed(self, call: Call) -> bool:
        """Return whether the user has a HIGH converter that may accept a call, or a decomposition of its operator."""
        return call.target in self.claims.decomposed or self.is_users(call)

    def is_users(self, call: Call) -> bool:
        """Return whether the user has a HIGH converter that may accept a call."""
        return self.claims.keeps(call.target, call.args, call.kwargs, call.value)

    def emit(self, call: Call, refused: bool = False) -> Argument:
        """Add a call to the new graph and return its value: the new node, or the result of the call's decomposition."""
        if call.target is operator.getitem and isinstance(call.args[0], (tuple, list)):
            return call.args[0][call.args[1]]
        if kept_in_torch(call.target, call.meta, self.settings) or self.is_left(call):
            return self.add(call)
        if has_complex(call.args, call.kwargs, call.value):
            inlined = self.inline_pairs(call)
            return inlined[0] if inlined else self.settle(call, lambda node: False)
        if not refused and self.is_users(call):
            return self.add(call)
        inlined = self.inline_first(call)
        accepts = self.claims.accepts_without_users if refused else self.claims.accepts
        return inlined[0] if inlined else self.settle(call, accepts)

    def is_left(self, call: Call) -> bool:
        """Return whether a call stays in PyTorch, whose grouped matmul is faster, and the settings allow that."""
        if self.ways.own(call.target) is not grouped_mm or self.program.settings.require_full_compilation:
            return False
        (rows, _), matrices = (shape_of(x.meta["val"]) for x in call.args[:2])
        tuned = [bounds(rows, {**self.program.shapes, **each}).opt for each in self.program.profiles or (FrozenDict(),)]
        return all(isinstance(size, int) for size in matrices) and is_faster_in_torch(tuned, matrices)

    def add(self, call: Call) -> Node:
        """Add a node to the new graph."""
        node = self.graph.create_node("call_function", call.target, tuple(call.args), dict(call.kwargs), call.name)
        node.meta = {**origin(call.meta), "val": call.value}
        self.note(node)
        return node

    def note(self, node: Node) -> None:
        """Record whether a node is constant, if later nodes depend on it."""
        if self.claims.targets:
            self.constant[node] = is_constant(node, self.constant, self.program)

    def settle(self, call: Call, accepts: Callable[[Node], bool]) -> Argument:
        """Keep a call if a converter accepts it or nothing decomposes it; else return torch's decomposition."""
        node = self.add(call)
        if not is_operator(node) or accepts(node) or is_slow(node, self.program.settings):
            return node
        convolution = None if call.target in self.ways.disabled else _as_convolution(node)
        if convolution is not None:
            self.graph.erase_node(node)
            return self.emit(Call(aten.convolution.default, convolution, {}, node.meta))
        decomposition = self.ways.torchs(call.target)
        inlined = decomposition and self.inline(decomposition, call)
        if not inlined:
            return node
        self.graph.erase_node(node)
        return inlined[0]

    def inline_first(self, call: Call) -> tuple[Argument] | None:
        """Decompose a call that leads to a user's operator or has a registered decomposition; else return None."""
        way = self.contents.way(call, self.constant) if self.claims.targets else None
        own = self.ways.own(call.target)
        if way is not None and way is not own:
            return self.inline(way, call)
        return own and self.inline_own(own, call)

    def inline_own(self, function: Function, call: Call) -> tuple[Argument] | None:
        """Call `inline` for a registered decomposition, which may be a user's: errors name the decomposition."""
        try:
            inlined = self.inline(function, call)
            if inlined is not None:
                check_results(inlined[0], call.value)
                self.applied.add(known_as(call.target))
            return inlined
        except ConversionError:
            raise
        except Exception as error:
            module = str(getattr(function, "__module__", "")).partition(".")[0]
            whose = {"torch": "PyTorch's", "pipeline": "pipeline's"}.get(module)
            own = f"its decomposition {function_name(function)} is wrong"
            why = f"{whose} decomposition of it fails: {error_text(error)}" if whose else f"{own}: {error_text(error)}"
            name = str(call.target)
            raise ConversionError(call.name or name, name, source_line_in(call.meta), why) from error

    def inline_pairs(self, call: Call) -> tuple[Argument] | None:
        """Return the outputs of an operator's rule on pairs, complex outputs joined; None if it has no rule."""
        rule = RULES.get(known_as(call.target))
        if rule is None:
            return None
        where = origin(call.meta)
        args, kwargs = self.complex.apart((call.args, call.kwargs), where)
        inlined = self.inline(settled(rule, call.value), Call(rule, args, kwargs, where))
        return inlined and (self.complex.together(inlined[0], where),)

    def inline(self, function: Function, call: Call) -> tuple[Argument] | None:
        """Emit a decomposition into the new graph and return its outputs; None if it does not apply, or would recurse:
        torch's composites end at operators that our decompositions express by composites."""
        template = self.templates.of(function, call.target, call.args, call.kwargs, call.value)
        if template is None or template.key in self.open:
            return None

        def emit(node: Node, args: Argument, kwargs: Argument) -> Argument:
            return self.emit(Call(node.target, args, kwargs, {**origin(call.meta), "val": node.meta.get("val")}))

        self.open.add(template.key)
        try:
            return (pasted(template.graph, nodes_of(call.args, call.kwargs), emit),)
        finally:
            self.open.remove(template.key)


def _as_convolution(node: Node) -> tuple[object, ...] | None:
    """Return the arguments of ``aten.convolution`` for another convolution operator; None if it needs a trace."""
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
