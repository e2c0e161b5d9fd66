"""Functionalisation: a graph without mutation, as every later stage expects it.

Most in-place operators work on a fresh value that nothing else sees (``out += identity``, ``relu_``): those are
rewritten here, one for one, in linear time. Whatever needs alias analysis (views, buffers, inputs, control flow) goes
through torch's own functionalisation, which traces the whole program again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pipeline.aten.graphs import over
from pipeline.frontend.known_numbers import is_told
from pipeline.frontend.tracing import exporting

_FRESH = frozenset({"linear", "conv1d", "conv2d", "conv3d", "batch_norm", "layer_norm", "group_norm", "matmul", "silu"})
"""Composite operators that never return their input; others are taken for views unless their schema says otherwise."""


def functional(exported: ExportedProgram) -> tuple[ExportedProgram, torch.fx.GraphModule]:
    """The same program without mutation, and its graph; what is passed in is not changed."""
    nodes = list(exported.graph.nodes)
    mutating, lost = [n for n in nodes if _mutates(n)], [n for n in nodes if _has_own_size(n) or _is_unread(n)]
    traced_again = lost or any(_is_wrapped(n) for n in nodes)
    if not mutating and not traced_again:
        return exported, exported.graph_module
    if all(_is_simple(n) for n in mutating) and not traced_again:
        return exported, _rewritten(exported.graph_module)
    with torch.no_grad(), exporting(), _unbound(lost):
        retraced = exported.run_decompositions({})
    return retraced, retraced.graph_module


def _mutates(node: torch.fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if node.target._schema.name == "aten::batch_norm":
        return bool(node.args[5])  # training: the running statistics are updated
    return node.target._schema.is_mutable


def _is_wrapped(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.HigherOrderOperator) and "wrap" in node.target.name()


def _has_own_size(node: torch.fx.Node) -> bool:
    """Whether a slice has a size that its inputs do not tell, as those have that were exported before torch 2.13."""
    if node.target is not torch.ops.aten.slice.Tensor:
        return False
    return bool(_unbacked(node) - {s for n in node.all_input_nodes for s in _unbacked(n)})


def _is_unread(node: torch.fx.Node) -> bool:
    """Whether sizes tell a number that Python reads from a tensor, and the export made up a symbol for it."""
    return is_told(node) and bool(_unbacked(node))


def _unbacked(node: torch.fx.Node) -> set[Any]:
    value: Any = node.meta.get("val")
    return set(free_unbacked_symbols(value.shape if isinstance(value, torch.Tensor) else value))


@contextmanager
def _unbound(nodes: Sequence[torch.fx.Node]) -> Iterator[None]:
    """While torch traces the nodes again: it is not told which symbols they made, which are theirs no longer."""
    made = [node.meta.pop("unbacked_bindings", None) for node in nodes]
    try:
        yield
    finally:
        for node, bindings in zip(nodes, made, strict=True):
            node.meta.update({} if bindings is None else {"unbacked_bindings": bindings})


def _aliases(node: torch.fx.Node) -> bool:
    """Whether the node's value may share memory with its input."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return True
    if any(r.alias_info is not None for r in target._schema.returns):
        return True
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
    return composite and target._schema.name.removeprefix("aten::") not in _FRESH


def _is_simple(node: torch.fx.Node) -> bool:
    """Whether an in-place operator writes to a fresh value that has no view."""
    if not _functional_variant(node.target):
        return False
    target = node.args[0]
    if not isinstance(target, torch.fx.Node):
        return False
    root = target
    while _mutates(root) and isinstance(root.args[0], torch.fx.Node):
        root = root.args[0]
    fresh = not _aliases(root) and not _mutates(root)
    return fresh and not any(_aliases(user) for user in root.users if not _mutates(user))


def _functional_variant(target: Any) -> Any:
    name, _, overload = str(target).removeprefix("aten.").partition(".")
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.endswith("_") else None
    return getattr(packet, overload, None) if packet is not None else None


def _rewritten(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    env: dict[torch.fx.Node, torch.fx.Node] = {}
    latest: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in module.graph.nodes:
        copy = env[node] = graph.node_copy(node, lambda n: latest.get(n, env[n]))
        copy.name = node.name  # as the signature calls it: fx would not let one be called "input"
        if _mutates(node):
            copy.target = _functional_variant(node.target)
            _follow(node, copy, latest)
    return over(module, graph)


def _follow(node: torch.fx.Node, copy: torch.fx.Node, latest: dict[torch.fx.Node, torch.fx.Node]) -> None:
    """From here on, whoever reads the mutated value, under any name, reads the new one."""
    while isinstance(node, torch.fx.Node):
        latest[node] = copy
        if not _mutates(node):
            return
        node = node.args[0]  # type: ignore[assignment]
