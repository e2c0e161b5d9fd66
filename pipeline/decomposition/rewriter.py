"""Copy a graph node by node, and replace nodes by their traced decompositions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container

import torch
from torch.fx.node import map_arg

from pipeline.aten.arguments import bind
from pipeline.aten.graphs import call_graph, copy_node
from pipeline.aten.naming import origin_of
from pipeline.aten.support import function_name
from pipeline.aten.traits import Kind, op_kind
from pipeline.aten.types import Argument, Function, Node, aten
from pipeline.capture.fake_tensors import fake_mode
from pipeline.converters.attention import is_slow_attention
from pipeline.converters.lookup import is_kept_in_torch
from pipeline.converters.matmul import equivalent_operator, grouped_mm, is_grouped_mm_faster_in_torch
from pipeline.converters.user_registrations import UserRegistrations
from pipeline.decomposition.candidates import CallSearch, Decompositions, check_decomposition_results
from pipeline.decomposition.complex_rules import RULES, ComplexValues, contains_complex, rule_with_cast_results
from pipeline.decomposition.control_flow import ControlFlow
from pipeline.decomposition.fold import is_constant
from pipeline.decomposition.templates import Call, Templates, argument_nodes
from pipeline.errors import ConversionError, error_text, source_line_in
from pipeline.frozen import FrozenDict
from pipeline.program import Program, is_operator
from pipeline.shapes.environment import bounds, shape_of


class Rewriter:
    """Rewrites a graph by decompositions. ``applied``: the operators whose registered decomposition was used."""

    def __init__(self, program: Program, claims: UserRegistrations, choices: Decompositions) -> None:
        self.program, self.claims, self.choices = program, claims, choices
        self.settings = claims.lookup.settings
        self.graph = torch.fx.Graph()
        self.mode = fake_mode(program.graph)
        self.templates = Templates(self.mode)
        self.user_calls = CallSearch(program, self.templates, choices, self.is_claimed_by_user)
        self.control_flow = ControlFlow(self.graph, self.templates, self.emit, self.is_kept_undecomposed)
        self.complex = ComplexValues(self.graph, self.mode, self.emit)
        self.constant: dict[Node, bool] = {}
        self.applied: set[object] = set()
        self.open_templates: set[str] = set()

    def rewrite(self) -> torch.fx.Graph:
        """Rewrite the whole graph into operators that have a converter, as far as decompositions allow."""

        def transform(node: Node, call: Call) -> Argument:
            written = self.control_flow.expand(node, call.args)
            return self.emit(call) if written is None else written

        return self._transform_nodes(transform)

    def is_kept_undecomposed(self, node: Node) -> bool:
        """Return whether a node is not decomposed: settings keep it in PyTorch, or a user's converter may accept it."""
        users = self.is_claimed_by_user(Call.of_node(node)) or self.choices.registered_for(node.target) is not None
        return users or is_kept_in_torch(node.target, node.meta, self.settings)

    def decompose_refused(self, refused_names: Container[str]) -> torch.fx.Graph:
        """Decompose the nodes with these names as if the user had no converter for them, and copy all other nodes."""

        def transform(node: Node, call: Call) -> Argument:
            apart = node.name in refused_names or node.target is operator.getitem
            return self.emit(call, refused=True) if apart else self.add_call(call)

        return self._transform_nodes(transform)

    def _transform_nodes(self, transform: Callable[[Node, Call], Argument]) -> torch.fx.Graph:
        """Build the new graph: ``transform`` adds a call's nodes and returns its result; other nodes are copied."""
        env: dict[Node, Argument] = {}
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                args, kwargs = map_arg((node.args, dict(node.kwargs)), env.__getitem__)
                env[node] = transform(node, Call(node.target, args, kwargs, node.meta, node.name))
            else:
                env[node] = copy_node(node, self.graph, env.__getitem__)
                self.record_constant(env[node])
        return self.graph

    def is_claimed_by_user(self, call: Call) -> bool:
        """Return whether a user's converter of HIGH priority may accept a call, or the user decomposes its operator."""
        return call.target in self.claims.decomposed_operators or self.may_have_users_converter(call)

    def may_have_users_converter(self, call: Call) -> bool:
        """Return whether a user's converter of HIGH priority may accept a call."""
        return self.claims.may_convert(call.target, call.args, call.kwargs, call.value)

    def emit(self, call: Call, refused: bool = False) -> Argument:
        """Add a call to the new graph, decomposed if necessary, and return its result. ``refused``: whether the user's
        converters have refused the call, so that they are not considered."""
        if call.target is operator.getitem and isinstance(call.args[0], (tuple, list)):
            return call.args[0][call.args[1]]
        if is_kept_in_torch(call.target, call.meta, self.settings) or self.is_grouped_matmul_for_torch(call):
            return self.add_call(call)
        if contains_complex(call.args, call.kwargs, call.value):
            inlined = self.inline_complex_rule(call)
            return inlined[0] if inlined else self.keep_or_decompose(call, lambda node: False)
        if not refused and self.may_have_users_converter(call):
            return self.add_call(call)
        inlined = self.inline_preferred(call)
        accepts = self.claims.accepts_without_users if refused else self.claims.accepts
        return inlined[0] if inlined else self.keep_or_decompose(call, accepts)

    def is_grouped_matmul_for_torch(self, call: Call) -> bool:
        """Return whether a call is a grouped matmul that PyTorch computes faster, and the settings allow PyTorch."""
        if self.choices.registered_for(call.target) is not grouped_mm or self.program.settings.require_full_compilation:
            return False
        (rows, _), matrices = (shape_of(x.meta["val"]) for x in call.args[:2])
        tuned = [bounds(rows, {**self.program.shapes, **each}).opt for each in self.program.profiles or (FrozenDict(),)]
        return all(isinstance(size, int) for size in matrices) and is_grouped_mm_faster_in_torch(tuned, matrices)

    def add_call(self, call: Call) -> Node:
        """Add an operator call to the new graph, without decomposing it."""
        node = self.graph.create_node("call_function", call.target, tuple(call.args), dict(call.kwargs), call.name)
        node.meta = {**origin_of(call.meta), "val": call.value}
        self.record_constant(node)
        return node

    def record_constant(self, node: Node) -> None:
        """Record whether a node of the new graph depends only on constants. Such a node is folded, so the search for
        calls that a user's converter may accept (``user_calls``) skips it."""
        if self.claims.claimed_targets:
            self.constant[node] = is_constant(node, self.constant, self.program)

    def keep_or_decompose(self, call: Call, accepts: Callable[[Node], bool]) -> Argument:
        """Add a call to the new graph, and return its result. The call stays as it is if a converter accepts its node
        (``accepts``) or torch has no decomposition that applies; else torch's decomposition is added."""
        node = self.add_call(call)
        if not is_operator(node) or accepts(node) or is_slow_attention(node, self.program.settings):
            return node
        convolution = None if call.target in self.choices.disabled else _as_convolution_arguments(node)
        if convolution is not None:
            self.graph.erase_node(node)
            return self.emit(Call(aten.convolution.default, convolution, {}, node.meta))
        decomposition = self.choices.torch_decomposition(call.target)
        inlined = decomposition and self.inline(decomposition, call)
        if not inlined:
            return node
        self.graph.erase_node(node)
        return inlined[0]

    def inline_preferred(self, call: Call) -> tuple[Argument] | None:
        """Add a call's decomposition to the new graph. Prefer one with a call for which the user registered a converter
        or decomposition; else use the registered one. Return ``(result,)``; None if there is none or none applies."""
        way = self.user_calls.find_decomposition(call, self.constant) if self.claims.claimed_targets else None
        own = self.choices.registered_for(call.target)
        if way is not None and way is not own:
            return self.inline(way, call)
        return own and self.inline_registered(own, call)

    def inline_registered(self, function: Function, call: Call) -> tuple[Argument] | None:
        """Add ``function``, the registered decomposition of a call's operator, to the new graph. Return ``(result,)``;
        None if it does not apply (see `inline`). If it fails, raise a `ConversionError` that names it."""
        try:
            inlined = self.inline(function, call)
            if inlined is not None:
                check_decomposition_results(inlined[0], call.value)
                self.applied.add(equivalent_operator(call.target))
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

    def inline_complex_rule(self, call: Call) -> tuple[Argument] | None:
        """Add a call of an operator on complex tensors to the new graph, computed by its rule (see `RULES`) from real
        and imaginary parts. Return ``(result,)``, whose parts are joined to complex nodes; None if it has no rule."""
        rule = RULES.get(equivalent_operator(call.target))
        if rule is None:
            return None
        where = origin_of(call.meta)
        args, kwargs = self.complex.split_arguments((call.args, call.kwargs), where)
        inlined = self.inline(rule_with_cast_results(rule, call.value), Call(rule, args, kwargs, where))
        return inlined and (self.complex.join_results(inlined[0], where),)

    def inline(self, function: Function, call: Call) -> tuple[Argument] | None:
        """Emit a decomposition of a call into the new graph. Return a tuple with one element, the call's result; None
        if the decomposition does not apply, or is being emitted already (it leads back to itself)."""
        template = self.templates.find(function, call.target, call.args, call.kwargs, call.value)
        if template is None or template.key in self.open_templates:
            return None

        def emit(node: Node, args: Argument, kwargs: Argument) -> Argument:
            return self.emit(Call(node.target, args, kwargs, {**origin_of(call.meta), "val": node.meta.get("val")}))

        self.open_templates.add(template.key)
        try:
            return (call_graph(template.graph, argument_nodes(call.args, call.kwargs), emit),)
        finally:
            self.open_templates.remove(template.key)


def _as_convolution_arguments(node: Node) -> tuple[object, ...] | None:
    """Return the arguments of ``aten.convolution`` for a ``conv2d`` (or similar) node; None for other nodes, and if an
    option such as the stride is not a list with a number per dim."""
    if op_kind(node.target) is not Kind.CONVOLVES:
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
