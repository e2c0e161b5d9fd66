"""Expand control flow: rewrite ``torch.cond``, ``map`` and ``scan`` into operators that engines support.

TensorRT runs all layers of a network in order. So both branches of a condition are computed, and a selection returns
the results of one branch; a function mapped over rows becomes one batched call, by `torch.vmap`; a scan of few steps is
unrolled. ``while_loop`` stays in PyTorch, and so does a condition with an operator that must not run unless its branch
is taken.

Before: ``cond(p, true_graph_0, false_graph_0, (x,))``. After: ``where(p, relu(x), mul(x, 2))``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pipeline.aten.graphs import call_graph, graph_module
from pipeline.aten.naming import origin_of
from pipeline.aten.op_predicates import branch_graphs, branch_only_reason
from pipeline.aten.types import Argument, Node, Target, aten
from pipeline.capture.fake_tensors import fake_result
from pipeline.decomposition.templates import Call, Templates, argument_nodes
from pipeline.recipes import qualified_name
from pipeline.shapes.environment import evaluate_size, sizes_in

functorch: Any = torch._C._functorch

MOST_NODES: Final = 1024
"""The maximum number of operators, in all steps of a scan together, with which the scan is unrolled."""


def expansion_obstacle(node: Node) -> str:
    """Return why a ``cond``, ``map`` or ``scan`` node stays in PyTorch; empty if it is expanded, or for other nodes."""
    return next(filter(None, _all_obstacles(node)), "")


def _all_obstacles(node: Node) -> Iterator[str]:
    """Yield for each check of a control-flow node why the node stays in PyTorch; an empty string for a passed check."""
    if _control_flow_name(node) in _OBSTACLE_CHECKS:
        yield _OBSTACLE_CHECKS[_control_flow_name(node)](node)
        yield from (_inline_obstacle(inner, graph) for graph in branch_graphs(node) for inner in graph.graph.nodes)
    for inner in _inner_control_flow(node):
        expanded = _control_flow_name(inner) in _EXPAND
        found = expansion_obstacle(inner) if expanded else f"{qualified_name(inner.target)} cannot be expanded"
        yield found and f"{found}, of {inner.name} in the inner graph"


def _control_flow_name(node: Node) -> str:
    """Return the name of a control-flow operator; empty for any other node."""
    return str(node.target.name()) if isinstance(node.target, torch._ops.HigherOrderOperator) else ""


def _inner_control_flow(node: Node) -> Iterator[Node]:
    """Yield the control-flow operators in the subgraphs of a control-flow node."""
    return (inner for graph in branch_graphs(node) for inner in graph.graph.nodes if _control_flow_name(inner))


def _why_keep_cond(node: Node) -> str:
    """Return why a ``cond`` node stays in PyTorch; empty if it can be replaced by both branches and a ``where``."""
    predicate = node.args[0].meta.get("val") if isinstance(node.args[0], Node) else node.args[0]
    if not isinstance(predicate, torch.Tensor):
        return "a size decides which branch runs, and a branch may be valid for its sizes only"
    values = node.meta.get("val") or (None,)
    if not all(isinstance(value, torch.Tensor) for value in values):
        return "the branches return Python numbers instead of tensors"
    given = (x.meta.get("val") for x in node.all_input_nodes)
    made, known = (
        {size for value in each if isinstance(value, torch.Tensor) for size in free_unbacked_symbols(value)}
        for each in (values, given)
    )
    if made - known:
        return "the branches return tensors of different sizes"
    for inner in (inner for graph in branch_graphs(node) for inner in graph.graph.nodes):
        is_call = inner.op == "call_function" and not _control_flow_name(inner)
        if is_call and (why := branch_only_reason(inner.target, inner.args, inner.meta.get("val"))):
            return f"{qualified_name(inner.target)} in a branch {why}: it must not run unless that branch is taken"
    return ""


def _why_keep_scan(node: Node) -> str:
    """Return why a ``scan`` node stays in PyTorch; empty if its loop can be unrolled."""
    steps, body = _scan_step_count(node), branch_graphs(node)
    if not isinstance(steps, int):
        return "the number of loop steps is a dynamic size"
    operators: int = steps * sum(each.op == "call_function" for graph in body for each in graph.graph.nodes)
    return f"the {steps} loop steps have {operators} operators, more than {MOST_NODES}" * (operators > MOST_NODES)


def _inline_obstacle(node: Node, module: torch.fx.GraphModule) -> str:
    """Return why a node of a branch or loop body cannot move into the program's graph; empty if it can."""
    if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
        return f"{node.name} in the inner graph writes in place"
    literal = node.op == "get_attr" and isinstance(getattr(module, str(node.target), None), torch.Tensor)
    return f"{node.name} is a tensor that the inner graph creates from numbers" * literal


def _scan_step_count(node: Node) -> object:
    """Return the number of steps of a ``scan`` node, the first size of its inputs: an int, or a SymInt if dynamic."""
    _, _, given, *_ = node.args
    return given[0].meta["val"].shape[0]  # type: ignore[index, union-attr]


_OBSTACLE_CHECKS: Final = {"cond": _why_keep_cond, "scan": _why_keep_scan}


def _is_valid_for_all_sizes(graph: torch.fx.Graph, expected: Sequence[torch.Tensor]) -> bool:
    """Return whether a traced graph returns the expected dynamic sizes; some `torch.vmap` rules make sizes constant."""
    given = [node.meta["val"] for node in graph.nodes if node.op == "placeholder"]
    symbols = {s for v in (*given, *expected) for size in sizes_in(v) for s in getattr(size, "free_symbols", ())}
    others = {name: 720 * (7 + i) for i, name in enumerate(sorted(map(str, symbols)))}

    def other(value: Argument) -> Argument:
        sizes = [evaluate_size(size, others) for size in sizes_in(value)]
        if isinstance(value, torch.Tensor):
            return torch.empty(sizes, dtype=value.dtype, device=value.device)
        return sizes[0] if sizes else value

    with torch.no_grad(), FakeTensorMode():
        try:
            found = torch.fx.Interpreter(graph_module(torch.nn.Module(), graph)).run(*map(other, given))
        except Exception:  # whatever operators raise for sizes that do not fit
            return False
        return [value.shape for value in found] == [other(value).shape for value in expected]


class _UnsupportedMap(Exception):  # noqa: N818 - not an error
    """Raised if `torch.vmap` does not support the function of a ``map``, which then stays in PyTorch."""


class ControlFlow:
    """Expands control-flow nodes into operators of the program's graph. ``emit`` appends a call and returns its value;
    nodes for which ``is_kept_undecomposed`` is true stay unchanged, in PyTorch."""

    def __init__(
        self,
        graph: torch.fx.Graph,
        templates: Templates,
        emit: Callable[[Call], Argument],
        is_kept_undecomposed: Callable[[Node], bool],
    ) -> None:
        self.graph, self.templates, self.emit, self.is_kept_undecomposed = graph, templates, emit, is_kept_undecomposed
        self.maps = 0

    def expand(self, node: Node, args: Argument) -> Argument | None:
        """Emit operators that compute a control-flow node, and return its results as a tuple; return None, and emit
        nothing, if the node stays in PyTorch. ``args``: the node's arguments, as values in the new graph."""
        if _control_flow_name(node) not in _EXPAND:
            return None
        if any(map(self.is_kept_undecomposed, (node, *_inner_control_flow(node)))) or expansion_obstacle(node):
            return None
        before = len(self.graph.nodes)
        try:
            return _EXPAND[_control_flow_name(node)](self, node, args)
        except _UnsupportedMap:
            for made in reversed(list(self.graph.nodes)[before:]):
                self.graph.erase_node(made)
            return None

    def emit_subgraph(self, module: torch.fx.GraphModule, inputs: tuple[Argument, ...]) -> tuple[Argument, ...]:
        """Emit the operators of a subgraph for these inputs, and return the subgraph's results."""

        def emit(node: Node, args: Argument, kwargs: Argument) -> Argument:
            if node.op == "get_attr":
                return None
            if _control_flow_name(node):
                return _EXPAND[_control_flow_name(node)](self, node, args)
            return self.emit(Call(node.target, args, kwargs, node.meta))

        return tuple(call_graph(module.graph, inputs, emit))  # type: ignore[arg-type]

    def emit_call(self, node: Node, target: Target, *args: Argument) -> Argument:
        """Emit a new call, with the metadata of the control-flow node that it replaces."""
        fake = fake_result(self.templates.mode, target, args, {})
        return self.emit(Call(target, args, {}, {**origin_of(node.meta), "val": fake}))

    def expand_cond(self, node: Node, args: Argument) -> tuple[Argument, ...]:
        """Emit both branches of a ``cond``, and for each result a ``where`` that selects between them."""
        predicate, _, _, operands = args
        chosen, other = (self.emit_subgraph(graph, operands) for graph in branch_graphs(node))
        if predicate.meta["val"].dim():
            predicate = self.emit_call(node, aten.reshape.default, predicate, [])
        return tuple(self.emit_call(node, aten.where.self, predicate, a, b) for a, b in zip(chosen, other, strict=True))

    def expand_map(self, node: Node, args: Argument) -> tuple[Argument, ...]:
        """Emit a ``map`` as one batched call of its function for all rows, by `torch.vmap`; return the results."""
        _, rows, others = args
        [body] = branch_graphs(node)

        def mapped(*given: Argument) -> Argument:
            enabled = functorch._is_vmap_fallback_enabled()
            functorch._set_vmap_fallback_enabled(False)  # vmap's fallback would loop over all rows
            try:
                each, shared = given[: len(rows)], given[len(rows) :]
                return torch.vmap(lambda *one: tuple(body(*one, *shared)))(*each)
            except RuntimeError:
                return NotImplemented
            finally:
                functorch._set_vmap_fallback_enabled(enabled)

        self.maps += 1
        mapped.__name__ = f"map {self.maps}"
        given = (*rows, *others)
        template = self.templates.find(mapped, node.target, given, {}, node.meta.get("val"))
        if template is None or not _is_valid_for_all_sizes(template.graph, node.meta["val"]):
            raise _UnsupportedMap

        def emit(call: Node, args: Argument, kwargs: Argument) -> Argument:
            return self.emit(Call(call.target, args, kwargs, {**origin_of(node.meta), "val": call.meta.get("val")}))

        return tuple(call_graph(template.graph, argument_nodes(given, {}), emit))  # type: ignore[arg-type]

    def expand_scan(self, node: Node, args: Argument) -> tuple[Argument, ...]:
        """Emit each step of a scan: its body computes new state and results from the state and the step's elements."""
        _, state, sequences, others = args
        [body] = branch_graphs(node)
        made = list[tuple[Argument, ...]]()
        for step in range(_scan_step_count(node)):  # type: ignore[call-overload]
            now = (self.emit_call(node, aten.select.int, sequence, 0, step) for sequence in sequences)
            found = self.emit_subgraph(body, (*state, *now, *others))
            state, results = found[: len(state)], found[len(state) :]
            made.append(results)
        return *state, *(self.emit_call(node, aten.stack.default, list(each), 0) for each in zip(*made, strict=True))


_EXPAND: Final = {"cond": ControlFlow.expand_cond, "map_impl": ControlFlow.expand_map, "scan": ControlFlow.expand_scan}
