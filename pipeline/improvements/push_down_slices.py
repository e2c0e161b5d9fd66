"""push_down_slices: select rows before layers that compute each row independently, instead of after these layers.

A classifier that reads one token needs only that token of the last layer. The pass moves a selection before operators
that compute each row independently, if nothing else reads their results. TensorRT itself selects only where the model
does, after computing all rows. Attention still computes all of its rows: with fewer queries, ViT's attention with a
batch size of 8 was not faster on an H200, and the matmul for queries, keys and values was split in two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

import torch
from attrs import frozen

from pipeline.aten.arguments import argument
from pipeline.aten.op_predicates import is_pointwise
from pipeline.aten.traits import Kind, has_explicit_sizes, op_kind, operators_of_kind
from pipeline.aten.types import Argument
from pipeline.decomposition.fold import is_pure
from pipeline.improvements.rewriting import (
    Node,
    Rewriting,
    aten,
    improvement,
    is_copy,
    is_output,
    permuted_dims,
    rank_of,
    source_of,
)
from pipeline.shapes.environment import Expr, shape_of

NORMS = (aten.layer_norm.default, aten.rms_norm.default)

ArgumentDims: TypeAlias = Mapping[int, int]
"""The dim along which each argument is read row by row, by the argument's index; others are read completely."""


def argument_row_dims(node: Node, result_dim: int) -> ArgumentDims | None:
    """Return {argument index: dim} for the arguments of which row i along ``dim`` is enough for row i of the result
    along ``result_dim``; other arguments are read completely. None if rows mix, as in a sum over ``result_dim``."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or any(isinstance(v, Node) for v in node.kwargs.values()):
        return None
    for operators, reads in READS:
        if node.target in operators:
            return reads(node, result_dim)
    return _row_dims_of_elementwise(node, result_dim) if is_pointwise(node) and is_pure(node.target) else None


def _row_dims_of_elementwise(node: Node, result_dim: int) -> ArgumentDims | None:
    """Return {argument index: dim} (`argument_row_dims`), without arguments that broadcast along ``result_dim``."""
    found = {}
    size = shape_of(node.meta["val"])[result_dim]
    for i, value in enumerate(node.args):
        if not isinstance(value, Node):
            continue
        if not isinstance(value.meta.get("val"), torch.Tensor):
            return None
        own = result_dim - rank_of(node) + rank_of(value)
        given: Expr = shape_of(value.meta["val"])[own] if own >= 0 else 1
        if own >= 0 and given == size:
            found[i] = own
        elif given != 1:
            return None
    return found or None


def _row_dims_of_linear_or_norm(node: Node, result_dim: int) -> ArgumentDims | None:
    """Return {0: result_dim} if row i of the result needs only row i of argument 0; None for the features' dims."""
    last = len(argument(node, "normalized_shape")) if node.target in NORMS else 1
    return {0: result_dim} if result_dim < rank_of(node) - last else None


def _row_dims_of_matmul(node: Node, result_dim: int) -> ArgumentDims | None:
    """Return {0: result_dim} if row i needs only row i of argument 0, since argument 1 is one matrix; else None."""
    x, y = node.args
    plain = isinstance(x, Node) and isinstance(y, Node) and rank_of(y) == 2
    return {0: result_dim} if plain and result_dim < rank_of(node) - 1 else None


def _row_dims_of_slice(node: Node, result_dim: int) -> ArgumentDims | None:
    """Return {0: result_dim} if row i of a slice is row i of argument 0: it slices another dim, or all; else None."""
    return {0: result_dim} if argument(node, "dim") % rank_of(node) != result_dim or is_copy(node) else None


def _row_dims_of_reshape(node: Node, result_dim: int) -> ArgumentDims | None:
    """Return {0: dim} for the dim of argument 0 that a reshape keeps as ``result_dim``: its size and the product of the
    sizes to its left are equal. None if there is none."""
    before, after = shape_of(source_of(node).meta["val"]), shape_of(node.meta["val"])
    if node.target is aten.unflatten.int:
        first = argument(node, "dim") % len(before)
        if first <= result_dim < first + len(argument(node, "sizes")):
            return None
    for own, size in enumerate(before):
        if size == after[result_dim] and math.prod(before[:own]) == math.prod(after[:result_dim]):
            return {0: own}
    return None


READS: tuple[tuple[Collection[object], Callable[[Node, int], ArgumentDims | None]], ...] = (
    ((aten.linear.default, *NORMS), _row_dims_of_linear_or_norm),
    ((aten.mm.default, aten.matmul.default), _row_dims_of_matmul),
    ((aten.addmm.default,), lambda node, dim: {1: 0} if dim == 0 and rank_of(source_of(node)) == 1 else None),
    ((aten.slice.Tensor,), _row_dims_of_slice),
    ((aten.select.int,), lambda node, dim: {0: dim + (dim >= argument(node, "dim") % (rank_of(node) + 1))}),
    (operators_of_kind(Kind.RESHAPES), _row_dims_of_reshape),
    (operators_of_kind(Kind.TRANSPOSES), lambda node, dim: {0: permuted_dims(node)[dim]}),
    (operators_of_kind(Kind.COPIES, Kind.CASTS), lambda node, dim: {0: dim}),
)
"""Operators that compute each row from one row of the inputs, with a function for the row dims of the inputs."""


WORTH = (Kind.PROJECTS, Kind.MULTIPLIES, Kind.NORMALIZES)
"""A selection moves only past an operator of these kinds, since TensorRT fuses other operators into their readers."""


@frozen
class Selection:
    """The rows ``[start, stop)`` of ``source`` along ``dim``, with a fixed number of rows."""

    source: Node
    dim: int
    start: int
    stop: int
    count: int


@improvement(after="masked_rows")
def push_down_slices(rewriting: Rewriting) -> None:
    """Move a selection of few rows before the operators that compute each row independently."""
    for node in reversed(list(rewriting.nodes(aten.select.int, aten.slice.Tensor))):
        chosen = None if node._erased else _match_selection(node)
        region = {} if chosen is None else _nodes_read_in_selected_rows(chosen)
        if chosen is not None and any(op_kind(n.target) in WORTH for n in region):
            _compute_selected_rows(rewriting, chosen, region)


def _match_selection(node: Node) -> Selection | None:
    """Match a node as a selection of at most half of the rows of its input; return None for other nodes."""
    source = source_of(node)
    if not isinstance(source, Node) or source.op != "call_function" or node.kwargs:
        return None
    dim = argument(node, "dim") % rank_of(source)
    size = shape_of(source.meta["val"])[dim]
    if node.target is aten.select.int:
        start = argument(node, "index")
        stop, count = start + 1 if type(start) is int and start != -1 else None, 1
    else:
        start, stop, count = argument(node, "start") or 0, argument(node, "end"), shape_of(node.meta["val"])[dim]
        if argument(node, "step") != 1:
            return None
    stop = torch.iinfo(torch.int64).max if stop is None else stop
    if not all(type(n) is int for n in (start, stop, count)) or (isinstance(size, int) and 2 * count > size):
        return None
    return Selection(source, dim, start, stop, count)


def _nodes_read_in_selected_rows(chosen: Selection) -> dict[Node, int]:
    """Return the nodes of which only the selected rows are read, each with the dim along which they are selected."""
    found: dict[Node, int] = {}
    waiting = {chosen.source}
    while waiting:
        node = max(waiting)  # all its readers have been examined
        waiting.remove(node)
        dim = _dim_of_selected_rows(node, chosen, found)
        read = None if dim is None else argument_row_dims(node, dim)
        if dim is not None and read is not None:
            found[node] = dim
            waiting |= {n for i in read if isinstance(n := node.args[i], Node) and n.op == "call_function"}
    return found


def _dim_of_selected_rows(node: Node, chosen: Selection, row_dim_of: Mapping[Node, int]) -> int | None:
    """Return the dim along which all readers of a node read only the selected rows; None if a reader reads more."""
    dims: set[int | None] = {None} if is_output(node) else set()
    for reader in node.users:
        if reader in row_dim_of:
            read = argument_row_dims(reader, row_dim_of[reader]) or {}
            dims |= {read.get(i) for i, argument in enumerate(reader.args) if argument is node}
        else:
            same = _match_selection(reader) if reader.target in (aten.select.int, aten.slice.Tensor) else None
            dims.add(chosen.dim if same == chosen else None)
    size = shape_of(chosen.source.meta["val"])[chosen.dim]
    dim = dims.pop() if len(dims) == 1 else None
    return dim if dim is not None and shape_of(node.meta["val"])[dim] == size else None


def _compute_selected_rows(rewriting: Rewriting, chosen: Selection, row_dim_of: Mapping[Node, int]) -> None:
    """Compute only the rows ``chosen`` of the nodes in ``row_dim_of``, along the dim that it has for each node. Change
    nothing if no converter accepts one of the new nodes."""
    made: dict[tuple[Argument, int], Node] = {}

    def rows_of(value: Argument, dim: int, reader: Node) -> Node:
        """Return the selected rows of an argument, computed in the region or sliced once for all readers."""
        if (value, dim) not in made:
            cut = (value, dim, chosen.start, chosen.stop)
            made[value, dim] = rewriting.create(aten.slice.Tensor, cut, {}, reader)
        return made[value, dim]

    for node in sorted(row_dim_of):
        dim = row_dim_of[node]
        reads = argument_row_dims(node, dim) or {}
        arguments: list[Argument] = [rows_of(v, reads[i], node) if i in reads else v for i, v in enumerate(node.args)]
        if has_explicit_sizes(node.target):
            arguments[1] = [*arguments[1][:dim], chosen.count, *arguments[1][dim + 1 :]]
        made[node, dim] = rewriting.create(node.target, tuple(arguments), dict(node.kwargs), node)
    if all(map(rewriting.accepted, made.values())):
        rows = made[chosen.source, chosen.dim]
        for reader in list(chosen.source.users):
            if reader.target is aten.select.int:
                rewriting.offer(reader, aten.select.int, (rows, chosen.dim, 0))
            else:
                rewriting.replace(reader, rows)
    for node in reversed(made.values()):
        rewriting.erase(node)
