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
    """A node that is a view of the node ``source``: the call ``target(source, *args)`` computes it."""

    node: Node
    source: Node
    target: Target
    args: tuple[Argument, ...]

    def recompute(self, emit: Emit, viewed: Node) -> Node:
        """Append by ``emit`` a call that computes this view from the new graph's node ``viewed``; return its node."""
        return emit(self.target, viewed, *self.args, val=self.node.meta["val"])

    def update_source(self, emit: Emit, viewed: Node, written: Node) -> Node | None:
        """Return the new value of ``viewed``, the viewed tensor, after this view of it was set to ``written``; None if
        that is not supported. ``emit`` appends the necessary calls to the new graph."""
        return RULES[self.target](self, emit, viewed, written)


def describe_view_by_rule(node: Node) -> View | None:
    """Return a node as a `View` if a rule covers its operator, else None. An item of ``split`` is described as a slice,
    an item of ``unbind`` as a select."""
    if node.target is operator.getitem:
        return _view_of_split_piece(node)
    if node.target not in RULES:
        return None
    source, *args = bind(node.target, node.args, node.kwargs)
    positional = [a for a in node.target._schema.arguments if not a.kwarg_only]  # type: ignore[union-attr]
    return View(node, source, node.target, tuple(args[: len(positional) - 1]))


def _view_of_split_piece(node: Node) -> View | None:
    """Return an item of ``split``, ``chunk`` or ``unbind`` as a view of the split tensor; None if no rule covers it."""
    split, index = node.args
    if not isinstance(split, Node) or split.target not in _PIECE_RULES or not isinstance(index, int):
        return None
    source, *args = bind(split.target, split.args, split.kwargs)
    found = _PIECE_RULES[split.target](source.meta["val"].shape, index, *args)
    return None if found is None else View(node, source, *found)


def _unbind_piece_as_select(shape: object, index: int, dim: int) -> tuple[object, tuple[object, ...]]:
    """Return the select operator, with its arguments, that computes an item of ``unbind``; ``shape`` is not needed."""
    return aten.select.int, (dim, index)


def _split_piece_as_slice(shape: Any, index: int, size: object, dim: int) -> tuple[object, tuple[object, ...]] | None:
    """Return the slice operator and its arguments for the item ``index`` of ``split(x, size, dim)``, where ``shape`` is
    the shape of ``x``; None for dynamic sizes."""
    whole = shape[dim]
    if not isinstance(whole, int) or not isinstance(size, int):
        return None
    return aten.slice.Tensor, (dim, index * size, min((index + 1) * size, whole), 1)


def _piece_of_sizes_as_slice(shape: Any, index: int, sizes: Any, dim: int) -> tuple[object, tuple[object, ...]] | None:
    """Return the slice operator and its arguments for an item of ``split_with_sizes``; None for dynamic sizes."""
    if not all(isinstance(size, int) for size in sizes):
        return None
    ends = [0, *itertools.accumulate(sizes)]
    return aten.slice.Tensor, (dim, ends[index], ends[index + 1], 1)


def _chunk_as_slice(shape: Any, index: int, chunks: int, dim: int) -> tuple[object, tuple[object, ...]] | None:
    """Return the slice operator, with its arguments, that computes an item of ``chunk``; None for dynamic sizes."""
    return _split_piece_as_slice(shape, index, -(-shape[dim] // chunks), dim) if isinstance(shape[dim], int) else None


_PIECE_RULES: Mapping[Any, Function] = {
    aten.unbind.int: _unbind_piece_as_select,
    aten.split.Tensor: _split_piece_as_slice,
    aten.split_with_sizes.default: _piece_of_sizes_as_slice,
    aten.split.sizes: _piece_of_sizes_as_slice,
    aten.chunk.default: _chunk_as_slice,
}
"""For each operator that returns several views, the rule that describes one of them as a single view."""

MULTI_VIEW_OPERATORS = frozenset(_PIECE_RULES)


def _write_whole(view: View, emit: Emit, viewed: Node, written: Node) -> Node | None:
    """Return ``written`` as the new value of the viewed tensor: the view has the same elements (``alias``, ``detach``).
    Return None if the view repeats elements (``expand``), since PyTorch rejects such writes."""
    return written if _covers_source(view) else None


def _covers_source(view: View) -> bool:
    """Return whether a view has the same sizes as the viewed tensor, and so all of its elements."""
    return shape_of(view.node.meta["val"]) == shape_of(view.source.meta["val"])


def _scatter_rule(target: object) -> Callable[..., Node]:
    """Return a rule for `RULES`, for a view that selects elements (``slice``). The rule computes the new viewed tensor
    by the operator ``target`` (``slice_scatter``), which writes the view's new value into the old viewed tensor."""

    def write(view: View, emit: Emit, before: Node, value: Node) -> Node:
        return value if _covers_source(view) else emit(target, before, value, *view.args, val=view.source.meta["val"])

    return write


def _inverse_rule(target: object = None) -> Callable[..., Node]:
    """Return a rule for `RULES`, for a view of all elements (``unsqueeze``). The rule computes the new viewed tensor
    from the view's new value by the inverse operator ``target`` (``squeeze``); None: the same (``transpose``)."""

    def write(view: View, emit: Emit, before: Node, value: Node) -> Node:
        return emit(target or view.target, value, *view.args, val=view.source.meta["val"])

    return write


def _write_permuted(view: View, emit: Emit, viewed: Node, written: Node) -> Node:
    """Return the new value of the viewed tensor of a ``permute``: ``written`` with its dims in the original order."""
    (dims,) = view.args
    back = sorted(range(len(dims)), key=lambda i: dims[i] % len(dims))
    return emit(aten.permute.default, written, back, val=view.source.meta["val"])


def _write_reshaped(view: View, emit: Emit, viewed: Node, written: Node) -> Node:
    """Return the new value of the viewed tensor of a reshape: ``written`` with the sizes of ``viewed``, the old value;
    dynamic sizes are read from ``viewed`` by ``sym_size``."""
    source = view.source.meta["val"]
    sizes = (n if isinstance(n, int) else emit(aten.sym_size.int, viewed, d, val=n) for d, n in enumerate(source.shape))
    return emit(aten.view.default, written, [*sizes], val=source)


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
