"""Functionalize an exported program: remove its mutation, and inline its regions such as ``torch.no_grad()``.

Rewriting (`capture.mutation`) removes writes in linear time. A program with a case that has no rewriting rule (writes
to parameters, training, user-defined operators that mutate, autocast and ``torch.vmap`` within the model) is
functionalized by torch, which traces it again. Norms that update running statistics are rejected: their schemas do not
declare the mutation, so torch.export loses it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import map_arg

from pipeline.aten.graphs import graph_module, results_of
from pipeline.aten.naming import make_unique
from pipeline.aten.op_predicates import mutates_argument
from pipeline.aten.types import Argument, Node
from pipeline.capture.aliases import UnknownAliasError
from pipeline.capture.mutation import functionalize_subgraphs, remove_mutation
from pipeline.capture.shared_tensors import merge_aliased_constants
from pipeline.errors import CaptureError, source_line_in
from pipeline.export_fixes import has_transforms, is_determined_by_sizes, patch_for_export, undo_at_exit
from pipeline.shapes.environment import expression, expression_text
from pipeline.shapes.from_export import ONE_SIZE_HINT


def _check_declared_writes(module: torch.fx.GraphModule) -> None:
    """Raise a `CaptureError` if a norm updates running statistics in training, which the export does not record."""
    norms = (torch.ops.aten.native_batch_norm.default, torch.ops.aten.instance_norm.default)
    for node in (node for node in module.graph.nodes if node.target in norms):
        if node.args[5] and node.args[3] is not None:  # training, with running statistics
            why = f"{node.target} at {source_line_in(node.meta) or node.name} updates running statistics in training"
            raise CaptureError(f"{why}, and torch.export does not record that", "call model.eval() first")


def calls_context_region(node: Node) -> bool:
    """Return whether a node runs the body of a context manager in the model, such as ``torch.no_grad()``."""
    return isinstance(node.target, torch._ops.HigherOrderOperator) and "wrap" in node.target.name()


def inline_context_regions(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Inline regions that do not affect results (``torch.no_grad()``); return the module itself if it has none."""
    if not any(_is_inlinable_region(node, module) for node in module.graph.nodes):
        return module
    inliner = _Inliner({node.name for node in module.graph.nodes})
    inliner.append_graph(module, {})
    return graph_module(module, inliner.graph)


def _inlinable_region(node: Node, root: torch.nn.Module) -> tuple[torch.fx.GraphModule, tuple[Argument, ...]] | None:
    """Return a region's graph module and the nodes that are its inputs, if the region can be inlined; else None."""
    name = node.target.name()  # type: ignore[union-attr]
    if name == "wrap_with_set_grad_enabled":
        _, body, *args = node.args
    elif name == "wrap_with_autocast" and not node.args[2]:
        *_, body = node.args[:5]
        args = list(node.args[5:])
    else:
        return None
    module = root.get_submodule(str(body.target))  # type: ignore[union-attr]
    assert isinstance(module, torch.fx.GraphModule)
    return (module, tuple(args)) if _calls_only_inlinable_regions(module) else None


def _is_inlinable_region(node: Node, root: torch.nn.Module) -> bool:
    """Return whether a node of the module ``root`` runs a region that can be inlined (``torch.no_grad()``)."""
    return calls_context_region(node) and _inlinable_region(node, root) is not None


def _calls_only_inlinable_regions(module: torch.fx.GraphModule) -> bool:
    """Return whether the only graphs that a graph calls are regions that can be inlined."""
    regions = set(filter(calls_context_region, module.graph.nodes))
    needed = {user for node in module.graph.find_nodes(op="get_attr") for user in node.users}
    return needed <= regions and all(_is_inlinable_region(node, module) for node in regions)


class _Inliner:
    """Copies a graph, and inlines regions: the subgraphs that context managers such as ``torch.no_grad()`` run."""

    def __init__(self, names: set[str]) -> None:
        self.graph, self.taken = torch.fx.Graph(), names

    def append_graph(
        self, module: torch.fx.GraphModule, env: dict[Node, Argument], *, keep_names: bool = True
    ) -> Argument:
        """Append a copy of a module's graph to the new graph. ``env``: the values in place of the graph's placeholders.

        For the outermost graph, ``keep_names`` is True: nodes keep their names, to which the export's signature refers,
        the output node is copied, and None is returned. For a region (the body of ``torch.no_grad()``) it is False:
        nodes get new names, and the tuple of the region's results is returned.
        """
        for node in module.graph.nodes:
            if node in env or (node.op == "get_attr" and all(_is_inlinable_region(u, module) for u in node.users)):
                continue
            if node.op == "output":
                if not keep_names:
                    return map_arg(tuple(results_of(module.graph)), env.__getitem__)
                self.graph.node_copy(node, env.__getitem__)
                continue
            env[node] = self.copy_node(node, module, env, keep_names)
        return None

    def copy_node(
        self, node: Node, module: torch.fx.GraphModule, env: Mapping[Node, Argument], keep_names: bool
    ) -> Argument:
        """Return a copy of a node of ``module``. If the node runs a region that can be inlined, append the nodes of the
        region instead, and return the tuple of its results. ``env``: the copy of each earlier node. ``keep_names``:
        whether the copy keeps the node's name."""
        found = _inlinable_region(node, module) if calls_context_region(node) else None
        if found is not None:
            body, args = found
            places = [n for n in body.graph.nodes if n.op == "placeholder"]
            given = map_arg(args, env.__getitem__)
            return self.append_graph(body, dict(zip(places, given, strict=True)), keep_names=False)
        if node.target is operator.getitem and isinstance(env[node.args[0]], tuple):  # type: ignore[index]
            return env[node.args[0]][node.args[1]]  # type: ignore[index]
        made = self.graph.node_copy(node, env.__getitem__)
        made.name = node.name if keep_names else make_unique(node.name, self.taken)
        return made


def functionalize(exported: ExportedProgram) -> tuple[ExportedProgram, torch.fx.GraphModule, ExportGraphSignature]:
    """Return a functional copy of an export, with its graph and signature; the argument is not changed."""
    module = functionalize_subgraphs(inline_context_regions(exported.graph_module))
    _check_declared_writes(module)
    module, signature = merge_aliased_constants(module, exported)
    nodes = list(module.graph.nodes)
    lost = [node for node in exported.graph.nodes if _introduces_redundant_symbol(node)]
    if not lost and not any(map(calls_context_region, nodes)) and not has_transforms(module):
        if not any(map(mutates_argument, nodes)):
            return exported, module, signature
        with suppress(UnknownAliasError):
            return exported, *remove_mutation(module, signature)
    varying = _dynamic_input_sizes(exported)
    with torch.no_grad(), patch_for_export(), _hide_unbacked_bindings(lost):
        retraced = exported.run_decompositions({})
    for place in varying.keys() - _dynamic_input_sizes(retraced).keys():
        raise _specialized_size_error(retraced, *place)
    return retraced, retraced.graph_module, retraced.graph_signature


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
