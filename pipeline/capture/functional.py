"""Functionalize an exported program: remove mutation, as every later stage expects.

Rewriting (`capture.mutation`) removes writes in linear time. Cases without a rule (writes to parameters, training,
user-defined operators that write, autocast and ``torch.vmap`` within the model) go through torch's own
functionalization, which traces the whole program again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pipeline.aten.op_predicates import mutates
from pipeline.capture.aliased_buffers import shared
from pipeline.capture.aliases import Unknown
from pipeline.capture.inline import inlined, wraps
from pipeline.capture.mutation import with_functional_parts, without_mutation
from pipeline.capture.undeclared_writes import without_undeclared_writes
from pipeline.errors import CaptureError
from pipeline.export_fixes import exporting, has_transforms, is_determined_by_sizes, undoing
from pipeline.shapes.environment import expression, in_words
from pipeline.shapes.from_export import ONE_SIZE

STEPS: Final = (inlined, with_functional_parts, without_undeclared_writes)
"""What is done to a graph before the writes in it are removed."""


def functional(
    exported: ExportedProgram,
) -> tuple[ExportedProgram, torch.fx.GraphModule, ExportGraphSignature]:
    """Return the same program without mutation, its graph and signature; the argument is not changed."""
    module = exported.graph_module
    for step in STEPS:
        module = step(module)
    module, signature = shared(module, exported)
    nodes = list(module.graph.nodes)
    lost = [n for n in exported.graph.nodes if _has_own_size(n) or _is_unread(n)]
    if not lost and not any(map(wraps, nodes)) and not has_transforms(module):
        if not any(map(mutates, nodes)):
            return exported, module, signature
        with suppress(Unknown):
            return exported, *without_mutation(module, signature)
    return _traced_again(exported, lost)


def _traced_again(
    exported: ExportedProgram, lost: Sequence[torch.fx.Node]
) -> tuple[ExportedProgram, torch.fx.GraphModule, ExportGraphSignature]:
    """Return torch's functionalization; ``lost``: nodes whose sizes the first trace read wrongly."""
    varying = _varying_sizes(exported)
    with torch.no_grad(), exporting(), _hidden_bindings(lost):
        retraced = exported.run_decompositions({})
    for place in varying.keys() - _varying_sizes(retraced).keys():
        raise _fixed_size_error(retraced, *place)
    return retraced, retraced.graph_module, retraced.graph_signature


def _varying_sizes(exported: ExportedProgram) -> dict[tuple[str, int], object]:
    """Return the inputs and dims whose sizes vary, and what they are."""
    values = {n.name: n.meta.get("val") for n in exported.graph.nodes if n.op == "placeholder"}
    inputs = {name: values.get(name) for name in exported.graph_signature.user_inputs if isinstance(name, str)}
    shapes = {name: value.shape for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    sizes = {(name, dim): expression(size) for name, shape in shapes.items() for dim, size in enumerate(shape)}
    ranges = exported.range_constraints
    return {p: s for p, s in sizes.items() if not isinstance(s, int) and not (s in ranges and ranges[s].is_singleton())}


def _fixed_size_error(exported: ExportedProgram, name: str, dim: int) -> CaptureError:
    """Return the error for a dynamic size that the second trace made constant."""
    place = f"{name}.shape[{dim}]"
    size = next(n for n in exported.graph.nodes if n.name == name).meta["val"].shape[dim]
    guards = [guard.expr for guard in reversed(size.node.shape_env.guards)] if isinstance(size, torch.SymInt) else []
    symbol = str(size.node._expr) if isinstance(size, torch.SymInt) else ""
    said = (in_words(guard, {symbol: place}) for guard in guards if symbol in map(str, guard.free_symbols))
    why = next(said, "the size in its example")
    return CaptureError(f"{place} can only be {size}: the model was captured for {why}", ONE_SIZE)


def _has_own_size(node: torch.fx.Node) -> bool:
    """Return whether a slice's size is a new symbol, as in exports before torch 2.13."""
    if node.target is not torch.ops.aten.slice.Tensor:
        return False
    return bool(_unbacked(node) - {s for n in node.all_input_nodes for s in _unbacked(n)})


def _is_unread(node: torch.fx.Node) -> bool:
    """Return whether the export has a new symbol for a number that sizes determine."""
    return is_determined_by_sizes(node) and bool(_unbacked(node))


def _unbacked(node: torch.fx.Node) -> set[object]:
    value: object = node.meta.get("val")
    return set(free_unbacked_symbols(value.shape if isinstance(value, torch.Tensor) else value))


@contextmanager
def _hidden_bindings(nodes: Sequence[torch.fx.Node]) -> Iterator[None]:
    """Return a context that hides which symbols the nodes introduced, so that they can be traced again."""
    made = {node: node.meta["unbacked_bindings"] for node in nodes if "unbacked_bindings" in node.meta}

    def bind() -> None:
        for node, bindings in made.items():
            node.meta["unbacked_bindings"] = bindings

    with undoing(bind):
        for node in made:
            node.meta.pop("unbacked_bindings", None)
        yield
