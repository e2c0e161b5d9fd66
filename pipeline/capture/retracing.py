"""Functionalize an export by torch, which traces it again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pipeline.errors import CaptureError
from pipeline.export_fixes import is_determined_by_sizes, patch_for_export, undo_at_exit
from pipeline.shapes.environment import expression, expression_text
from pipeline.shapes.from_export import ONE_SIZE_HINT


def retrace(exported: ExportedProgram, redundant: Sequence[torch.fx.Node]) -> ExportedProgram:
    """Return an export that torch traced again, without in-place operators; ``redundant``: its `redundant_symbols`.

    Raises:
        CaptureError: the second trace made a dynamic size of an input constant.
    """
    varying = _dynamic_input_sizes(exported)
    with torch.no_grad(), patch_for_export(), _hide_unbacked_bindings(redundant):
        retraced: ExportedProgram = exported.run_decompositions({})
    for place in varying.keys() - _dynamic_input_sizes(retraced).keys():
        raise _specialized_size_error(retraced, *place)
    return retraced


def redundant_symbols(exported: ExportedProgram) -> list[torch.fx.Node]:
    """Return the nodes that introduced a symbol for a number that sizes determine. Decompositions of torch before 2.13
    did so for slices."""
    return [node for node in exported.graph.nodes if _introduces_redundant_symbol(node)]


def _dynamic_input_sizes(exported: ExportedProgram) -> dict[tuple[str, int], object]:
    """Return the dynamic sizes of an export's inputs, by the input's name and the dim."""
    values = {n.name: n.meta.get("val") for n in exported.graph.nodes if n.op == "placeholder"}
    inputs = {name: values.get(name) for name in exported.graph_signature.user_inputs if isinstance(name, str)}
    shapes = {name: value.shape for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    sizes = {(name, dim): expression(size) for name, shape in shapes.items() for dim, size in enumerate(shape)}
    ranges = exported.range_constraints
    return {p: s for p, s in sizes.items() if not isinstance(s, int) and not (s in ranges and ranges[s].is_singleton())}


def _specialized_size_error(exported: ExportedProgram, name: str, dim: int) -> CaptureError:
    """Return the error for a dynamic size that functionalization, a second trace, made constant."""
    place = f"{name}.shape[{dim}]"
    size = next(n for n in exported.graph.nodes if n.name == name).meta["val"].shape[dim]
    guards = [guard.expr for guard in reversed(size.node.shape_env.guards)] if isinstance(size, torch.SymInt) else []
    symbol = str(size.node._expr) if isinstance(size, torch.SymInt) else ""
    said = (expression_text(guard, {symbol: place}) for guard in guards if symbol in map(str, guard.free_symbols))
    why = next(said, "the size in the example input")
    return CaptureError(f"{place} can only be {size}: the captured model requires {why}", ONE_SIZE_HINT)


def _introduces_redundant_symbol(node: torch.fx.Node) -> bool:
    """Return whether a node introduced a symbol for a number that sizes determine, as slices did before torch 2.13."""
    known = set[object]()
    if node.target is torch.ops.aten.slice.Tensor:
        known = {symbol for given in node.all_input_nodes for symbol in _unbacked_symbols(given)}
    elif not is_determined_by_sizes(node):
        return False
    return bool(_unbacked_symbols(node) - known)


def _unbacked_symbols(node: torch.fx.Node) -> set[object]:
    """Return the data-dependent symbols in a node's fake value."""
    value: object = node.meta.get("val")
    return set(free_unbacked_symbols(value.shape if isinstance(value, torch.Tensor) else value))


@contextmanager
def _hide_unbacked_bindings(nodes: Sequence[torch.fx.Node]) -> Iterator[None]:
    """Return a context in which ``nodes`` lack the metadata ``unbacked_bindings``, which names the data-dependent
    symbols that a node introduces. Otherwise torch would expect these symbols again when it traces the nodes again."""
    made = {node: node.meta["unbacked_bindings"] for node in nodes if "unbacked_bindings" in node.meta}

    def bind() -> None:
        for node, bindings in made.items():
            node.meta["unbacked_bindings"] = bindings

    with undo_at_exit(bind):
        for node in made:
            node.meta.pop("unbacked_bindings", None)
        yield
