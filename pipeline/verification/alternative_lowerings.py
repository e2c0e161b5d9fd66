"""Alternative implementations of a node whose engine is wrong: in float32, decomposed, another converter, PyTorch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial

import torch
from attrs import evolve, frozen
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.utils._pytree import tree_flatten, tree_unflatten

from pipeline.aten.tracing_thread import one_export
from pipeline.aten.types import Argument, Function, Target, aten
from pipeline.capture.fake_tensors import suppress_guards
from pipeline.converters import DYNAMO_CONVERTERS
from pipeline.converters.declare import Rejection
from pipeline.decomposition.templates import copy_calls
from pipeline.errors import PipelineError
from pipeline.frozen import FrozenDict
from pipeline.improvements.rewriting import Node, Rewriting
from pipeline.program import Program, Validated
from pipeline.verification.engines_in_torch import reject_nodes

HALVES = (torch.float16, torch.bfloat16)


class NotPossibleError(PipelineError):
    """An alternative implementation is not available for these nodes."""


@frozen
class Alternative:
    """An alternative way to compile any nodes. It defines ``rewrite``, which replaces the named nodes in the graph, or
    ``decide``, which chooses another converter for them, or PyTorch, with a reason. Both raise `NotPossibleError` if
    the nodes do not allow it. ``action``: what reports say of such nodes, ``computed in float32``."""

    action: str
    rewrite: Callable[[Program, Sequence[str]], Program] = lambda program, nodes: program
    decide: Callable[[Validated, Sequence[str], str], Validated] = lambda validated, nodes, reason: validated


def compute_in_float32(program: Program, nodes: Sequence[str]) -> Program:
    """Return the program with casts to and from float32 around these nodes; their weights are stored in float32."""
    rewriting = Rewriting(program, DYNAMO_CONVERTERS)
    halves = [n for n in rewriting.graph.nodes if n.name in nodes and any(map(_is_half, (n, *n.all_input_nodes)))]
    if not halves:
        raise NotPossibleError(f"none of the nodes {', '.join(nodes)} computes in float16 or bfloat16")
    for node in halves:
        _cast_to_float32(rewriting, node)
    return rewriting.changed_program()


def _cast_to_float32(rewriting: Rewriting, node: Node) -> None:
    """Replace a node by the same operator on inputs cast to float32, and cast its result back."""

    def cast(value: Node) -> Node:
        if not _is_half(value):
            return value
        return rewriting.create(aten._to_copy.default, (value,), {"dtype": torch.float32}, node)

    args, kwargs = map_arg((node.args, dict(node.kwargs)), cast)
    kwargs = {k: torch.float32 if v in HALVES else v for k, v in kwargs.items()}
    _replace_result(rewriting, node, rewriting.create(node.target, args, kwargs, node))


def _replace_result(rewriting: Rewriting, old: Node, new: Argument) -> None:
    """Let all nodes that read ``old`` (or an item of its tuple) read ``new`` instead, cast to the dtype of ``old``."""
    if isinstance(old.meta.get("val"), torch.Tensor):
        rewriting.replace(old, _cast_like(rewriting, old, new))
        return
    for item in list(old.users):
        if item.target is not operator.getitem:
            raise NotPossibleError(f"{old.name} returns a tuple, and {item.name} reads the whole tuple, not one item")
        index: Argument = item.args[1]
        if isinstance(new, list | tuple):
            made = new[index]
        else:
            made = rewriting.create(operator.getitem, (new, index), {}, item)
        rewriting.replace(item, _cast_like(rewriting, item, made))


def _cast_like(rewriting: Rewriting, old: Node, new: Node) -> Node:
    """Return ``new`` cast to the dtype of ``old``; add a cast to the graph if the dtypes differ."""
    dtype = old.meta["val"].dtype
    if new.meta["val"].dtype == dtype:
        return new
    return rewriting.create(aten._to_copy.default, (new,), {"dtype": dtype}, old)


def _is_half(node: Node) -> bool:
    """Return whether a node's value, or one of its items, is a float16 or bfloat16 tensor."""
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else (value,)
    return any(isinstance(v, torch.Tensor) and v.dtype in HALVES for v in values)


def decompose_nodes(program: Program, nodes: Sequence[str], depth: int = 1) -> Program:
    """Return the program with these nodes replaced by torch's decompositions of them, applied ``depth`` times."""
    rewriting = Rewriting(program, DYNAMO_CONVERTERS)
    for node in [n for n in rewriting.graph.nodes if n.name in nodes]:
        template, inputs = _trace_decomposition(rewriting, node, depth)
        with rewriting.graph.inserting_before(node):
            results = copy_calls(template.graph, inputs, rewriting.graph, node)
        _replace_result(rewriting, node, results)
    return rewriting.changed_program()


def _trace_decomposition(rewriting: Rewriting, node: Node, depth: int) -> tuple[torch.fx.GraphModule, list[Node]]:
    """Trace the decomposition of a node on fake inputs; return the traced graph, and the node's inputs."""
    flat, spec = tree_flatten((node.args, dict(node.kwargs)))
    inputs = [v for v in flat if isinstance(v, Node)]
    table: dict[Target, Function] = dict(torch.export.default_decompositions())
    targets: set[Target] = {node.target}

    def call(*values: object) -> Argument:
        rest = iter(values)
        args, kwargs = tree_unflatten([next(rest) if isinstance(v, Node) else v for v in flat], spec)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    fakes = [v.detach() if isinstance(v, torch.Tensor) else v for v in (n.meta["val"] for n in inputs)]
    try:
        for _ in range(depth):
            table |= {op: f for op, f in torch._decomp.decomposition_table.items() if op in targets}
            with one_export, torch.no_grad(), suppress_guards(rewriting.mode), enable_python_dispatcher():
                traced = make_fx(call, decomposition_table=table, tracing_mode="real")(*fakes)
            targets = {n.target for n in traced.graph.nodes if torch.Tag.pointwise not in getattr(n.target, "tags", ())}
    except Exception as error:
        raise NotPossibleError(f"{node.name} cannot be decomposed: {error}") from error
    if any(n.target is node.target or n.op == "get_attr" for n in traced.graph.nodes):
        raise NotPossibleError(f"torch has no decomposition for the operator of {node.name}")
    return traced, inputs


def use_next_converter(validated: Validated, nodes: Sequence[str], reason: str) -> Validated:
    """Return verdicts in which each node has the next converter that accepts it; ``reason`` is unused."""
    verdicts = dict(validated.verdicts)
    if refused := [name for name in nodes if not verdicts[name].others]:
        raise NotPossibleError(f"no other registered converter accepts {', '.join(refused)}")
    for name in nodes:
        first, *others = verdicts[name].others
        verdicts[name] = evolve(verdicts[name], choice=first, others=tuple(others))
    return evolve(validated, verdicts=FrozenDict(verdicts))


def run_in_torch(validated: Validated, nodes: Sequence[str], reason: str) -> Validated:
    """Return verdicts in which these nodes are rejected with this reason, so that they run in PyTorch."""
    return reject_nodes(validated, {name: Rejection(reason) for name in nodes})


IN_TORCH = Alternative("runs in PyTorch", decide=run_in_torch)

ALTERNATIVES = (
    Alternative("computed in float32", rewrite=compute_in_float32),
    Alternative("lowered by another converter", decide=use_next_converter),
    Alternative("lowered by torch's decomposition", rewrite=decompose_nodes),
    Alternative("lowered by torch's decomposition, twice", rewrite=partial(decompose_nodes, depth=2)),
    IN_TORCH,
)
"""All alternative implementations, in the order in which they are tried."""
