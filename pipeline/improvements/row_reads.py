"""Define ``rows_read``: for operators that compute each row of a dim independently, the rows that they read of their
arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

import torch

from pipeline.aten.arguments import argument
from pipeline.aten.op_predicates import is_pointwise
from pipeline.aten.traits import Does, targets
from pipeline.decomposition.fold import is_pure
from pipeline.improvements.rewriting import Node, aten, is_copy, permutation, rank_of, source_of
from pipeline.shapes.environment import Expr, shape_of

NORMS = (aten.layer_norm.default, aten.rms_norm.default)

Dims: TypeAlias = Mapping[int, int]
"""The dim along which each argument, by number, is read row by row; other arguments are read completely."""


def rows_read(node: Node, dim: int) -> Dims | None:
    """Return the dims along which an operator reads its arguments row by row to compute rows of ``dim``; None if it
    does not."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or any(isinstance(v, Node) for v in node.kwargs.values()):
        return None
    for operators, reads in READS:
        if node.target in operators:
            return reads(node, dim)
    return _broadcast(node, dim) if is_pointwise(node) and is_pure(node.target) else None


def _broadcast(node: Node, dim: int) -> Dims | None:
    """Handle broadcast arguments: those of one row, or without the dim, are the same for all rows."""
    found = {}
    size = shape_of(node.meta["val"])[dim]
    for i, value in enumerate(node.args):
        if not isinstance(value, Node):
            continue
        if not isinstance(value.meta.get("val"), torch.Tensor):
            return None
        own = dim - rank_of(node) + rank_of(value)
        given: Expr = shape_of(value.meta["val"])[own] if own >= 0 else 1
        if given == size:
            found[i] = own
        elif given != 1:
            return None
    return found or None


def _along_leading(node: Node, dim: int) -> Dims | None:
    """Handle operators that treat the leading dims of the first argument independently."""
    last = len(argument(node, "normalized_shape")) if node.target in NORMS else 1
    return {0: dim} if dim < rank_of(node) - last else None


def _matmul(node: Node, dim: int) -> Dims | None:
    """Handle matmuls, which multiply every row by one matrix."""
    x, y = node.args
    plain = isinstance(x, Node) and isinstance(y, Node) and rank_of(y) == 2
    return {0: dim} if plain and dim < rank_of(node) - 1 else None


def _addmm(node: Node, dim: int) -> Dims | None:
    bias = node.args[0]
    return {1: 0} if dim == 0 and isinstance(bias, Node) and rank_of(bias) == 1 else None


def _cut(node: Node, dim: int) -> Dims | None:
    """Handle slices of another dim, or of everything."""
    return {0: dim} if argument(node, "dim") % rank_of(node) != dim or is_copy(node) else None


def _picked(node: Node, dim: int) -> Dims:
    return {0: dim + (dim >= argument(node, "dim") % rank_of(source_of(node)))}


def _reshaped(node: Node, dim: int) -> Dims | None:
    """Handle reshapes: the rows are in the input dim before which there are as many elements as before the result's."""
    before, after = shape_of(source_of(node).meta["val"]), shape_of(node.meta["val"])
    if node.target is aten.unflatten.int and dim in _unflattened(node):
        return None
    for own, size in enumerate(before):
        if size == after[dim] and math.prod(before[:own]) == math.prod(after[:dim]):
            return {0: own}
    return None


def _unflattened(node: Node) -> range:
    """Return the result dims into which an ``unflatten`` splits one dim."""
    first = argument(node, "dim") % rank_of(source_of(node))
    return range(first, first + len(argument(node, "sizes")))


READS: tuple[tuple[Collection[object], Callable[[Node, int], Dims | None]], ...] = (
    ((aten.linear.default, *NORMS), _along_leading),
    ((aten.mm.default, aten.matmul.default), _matmul),
    ((aten.addmm.default,), _addmm),
    ((aten.slice.Tensor,), _cut),
    ((aten.select.int,), _picked),
    (targets(Does.RESHAPES), _reshaped),
    (targets(Does.TRANSPOSES), lambda node, dim: {0: permutation(node)[dim]}),
    (targets(Does.COPIES, Does.CASTS), lambda node, dim: {0: dim}),
)
"""Operators that compute rows from rows; pointwise operators do too."""
