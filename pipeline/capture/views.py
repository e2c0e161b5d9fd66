"""Rules for view operators: compute the new value of a tensor after a write to a view of it.

Each rule receives a ``View`` and its new value, and returns the new value of the viewed tensor. Programs that write
through a view operator without a rule are functionalized by torch.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from attrs import frozen

from pipeline.aten.arguments import bind
from pipeline.aten.types import Argument, Function, Node, Target, aten
from pipeline.shapes.environment import shape_of

Emit: TypeAlias = Callable[..., Node]
"""A function that appends a call to the new graph: ``emit(target, *args, val=…)``; ``val`` is its fake value."""


@frozen
class View:
    """A view in the old graph: its node, the viewed node, and the operator with its arguments after the viewed one."""

    node: Node
    source: Node
    target: Target
    args: tuple[Argument, ...]

    def recompute(self, emit: Emit, value: Node) -> Node:
        return emit(self.target, value, *self.args, val=self.node.meta["val"])

    def update_source(self, emit: Emit, before: Node, value: Node) -> Node | None:
        """Return the viewed tensor ``before`` after ``value`` is written to this view; None if there is no rule."""
        return RULES[self.target](self, emit, before, value)


def view_by_rule(node: Node) -> View | None:
    """Describe a node as a `View`; None without a rule. A piece of a split or unbound tensor is a slice or select."""
    if node.target is operator.getitem:
        return _view_of_piece(node)
    if node.target not in RULES:
        return None
    source, *args = bind(node.target, node.args, node.kwargs)
    positional = [a for a in node.target._schema.arguments if not a.kwarg_only]  # type: ignore[union-attr]
    return View(node, source, node.target, tuple(args[: len(positional) - 1]))


def _view_of_piece(node: Node) -> View | None:
    split, index = node.args
    if not isinstance(split, Node) or split.target not in _PIECE_RULES or not isinstance(index, int):
        return None
    source, *args = bind(split.target, split.args, split.kwargs)
    found = _PIECE_RULES[split.target](source.meta["val"].shape, index, *args)
    return None if found is None else View(node, source, *found)


def _select_piece(shape: object, index: int, dim: int) -> tuple[object, tuple[object, ...]]:
    return aten.select.int, (dim, index)


def _slice_equal_piece(shape: Any, index: int, size: object, dim: int) -> tuple[object, tuple[object, ...]] | None:
    whole = shape[dim]
    if not isinstance(whole, int) or not isinstance(size, int):
        return None
    return aten.slice.Tensor, (dim, index * size, min((index + 1) * size, whole), 1)


def _slice_piece(shape: Any, index: int, sizes: Any, dim: int) -> tuple[object, tuple[object, ...]] | None:
    if not all(isinstance(size, int) for size in sizes):
        return None
    ends = [0, *itertools.accumulate(sizes)]
    return aten.slice.Tensor, (dim, ends[index], ends[index + 1], 1)


def _slice_chunk(shape: Any, index: int, chunks: int, dim: int) -> tuple[object, tuple[object, ...]] | None:
    return _slice_equal_piece(shape, index, -(-shape[dim] // chunks), dim) if isinstance(shape[dim], int) else None


_PIECE_RULES: Mapping[Any, Function] = {
    aten.unbind.int: _select_piece,
    aten.split.Tensor: _slice_equal_piece,
    aten.split_with_sizes.default: _slice_piece,
    aten.split.sizes: _slice_piece,
    aten.chunk.default: _slice_chunk,
}
"""For each operator that returns several views, the rule that describes one of them as a single view."""

MULTI_VIEW_OPERATORS = frozenset(_PIECE_RULES)


def _write_whole(view: View, emit: Emit, before: Node, value: Node) -> Node | None:
    """Return the written value if the view repeats no element; PyTorch rejects writes to expanded tensors."""
    return value if _covers_source(view) else None


def _covers_source(view: View) -> bool:
    """Return whether a view has the same sizes as the viewed tensor."""
    return shape_of(view.node.meta["val"]) == shape_of(view.source.meta["val"])


def _scatter_rule(target: object) -> Callable[..., Node]:
    """Return a rule for a view of some elements: scatter the written value into the viewed tensor by ``target``."""

    def write(view: View, emit: Emit, before: Node, value: Node) -> Node:
        return value if _covers_source(view) else emit(target, before, value, *view.args, val=view.source.meta["val"])

    return write


def _inverse_rule(target: object = None) -> Callable[..., Node]:
    """Return a rule for a view of all elements: apply the inverse operator (by default the view's own) to the value."""

    def write(view: View, emit: Emit, before: Node, value: Node) -> Node:
        return emit(target or view.target, value, *view.args, val=view.source.meta["val"])

    return write


def _write_permuted(view: View, emit: Emit, before: Node, value: Node) -> Node:
    (dims,) = view.args
    back = sorted(range(len(dims)), key=lambda i: dims[i] % len(dims))
    return emit(aten.permute.default, value, back, val=view.source.meta["val"])


def _write_reshaped(view: View, emit: Emit, before: Node, value: Node) -> Node:
    """Reshape the written value to the sizes of the viewed tensor, whose dynamic sizes are read at run time."""
    source = view.source.meta["val"]
    sizes = (n if isinstance(n, int) else emit(aten.sym_size.int, before, d, val=n) for d, n in enumerate(source.shape))
    return emit(aten.view.default, value, [*sizes], val=source)


RULES: Mapping[object, Callable[..., Node | None]] = {
    aten.slice.Tensor: _scatter_rule(aten.slice_scatter.default),
    aten.select.int: _scatter_rule(aten.select_scatter.default),
    aten.diagonal.default: _scatter_rule(aten.diagonal_scatter.default),
    **dict.fromkeys(
        (aten.alias.default, aten.detach.default, aten.expand.default, aten.expand_as.default), _write_whole
    ),
    **dict.fromkeys((aten.transpose.int, aten.t.default, aten.numpy_T.default, aten.mT.default), _inverse_rule()),
    aten.permute.default: _write_permuted,
    aten.unsqueeze.default: _inverse_rule(aten.squeeze.dim),
    aten.view_as_complex.default: _inverse_rule(aten.view_as_real.default),
    aten.view_as_real.default: _inverse_rule(aten.view_as_complex.default),
    **dict.fromkeys((aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims), _write_reshaped),
    **dict.fromkeys((aten.view.default, aten._unsafe_view.default, aten.unflatten.int), _write_reshaped),
    **dict.fromkeys((aten.reshape.default, aten.flatten.using_ints), _write_reshaped),
}
"""The rule of each view operator. For reshapes it applies only if the result is a view: some layouts need a copy."""
