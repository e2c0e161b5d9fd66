"""fuse_attention: recognize attention that a model computes with separate operators, and fuse it into one operator.

The pattern is ``softmax(query @ keyᵀ · scale + mask) @ value``, with casts anywhere, the scale before or after the
matmul, and masks that are added, filled in or selected. The pass fuses a match if TensorRT has a single kernel for it
and nothing else reads the scores. The result of a row that minus infinity masks completely changes from NaN, which
softmax returns, to 0, as in PyTorch's own attention.
"""

from __future__ import annotations

import math
from functools import partial, reduce

import torch
from attrs import evolve, frozen

from pipeline.aten.arguments import argument
from pipeline.aten.graphs import Steps, evaluate_recursively
from pipeline.aten.types import Argument
from pipeline.converters.attention import is_fused
from pipeline.improvements.rewriting import (
    FLOATS,
    CallBuilder,
    Node,
    Rewriting,
    aten,
    both_orders,
    dtype_of,
    improvement,
    is_cast,
    is_copy,
    is_permutation,
    only_reader,
    permuted_dims,
    rank_of,
    source_of,
)
from pipeline.shapes.environment import shape_of

SDPA = aten.scaled_dot_product_attention.default
PRODUCTS = (aten.matmul.default, aten.bmm.default)
NOT = (aten.logical_not.default, aten.bitwise_not.default)

BLOCKED = -1e4
"""Scores that are filled with this number or a lower one count as masked."""


@frozen
class Scores:
    """Attention scores, the input of a softmax: the matmul of query and key, times a scale, with masks.

    ``added``: floating-point masks. ``allowed``: boolean masks, each with a flag: True if the mask is True where keys
    are visible, False if where they are hidden. ``finite``: whether hidden scores are a large negative number, not
    minus infinity, so that a row whose keys are all hidden averages all values.
    """

    query: Node
    key: Node
    scale: float = 1.0
    added: tuple[Node, ...] = ()
    allowed: tuple[tuple[Node, bool], ...] = ()
    finite: bool = False


@improvement(after="fuse_gelu")
def fuse_attention(rewriting: Rewriting) -> None:
    """Replace two matmuls with a softmax between them by one scaled_dot_product_attention."""
    for node in rewriting.nodes(*PRODUCTS):
        weights, value = node.args[:2]
        softmax = _skip_copies_and_casts(weights)
        if not isinstance(softmax, Node) or softmax.target not in (aten.softmax.int, aten._softmax.default):
            continue
        is_last_dim = argument(softmax, "dim") in (-1, rank_of(softmax) - 1)
        if not is_last_dim or not isinstance(value, Node) or dtype_of(value) != dtype_of(node):
            continue
        if not _is_only_reader_of_chain(weights, softmax, node):
            continue
        scores = evaluate_recursively(_match_scores, rewriting, softmax.args[0], softmax)
        if scores is None or {dtype_of(scores.query), dtype_of(scores.key)} != {dtype_of(node)}:
            continue
        if not scores.finite or _has_unmasked_position_in_every_row(rewriting, scores):
            _replace_by_attention(rewriting, node, scores, value)


def _replace_by_attention(rewriting: Rewriting, matmul: Node, scores: Scores, value: Node) -> None:
    key = _transpose_key(rewriting, scores.key, matmul)
    leading = {shape_of(n.meta["val"])[:-2] for n in (scores.query, key, value)}
    if len(leading) > 1:  # attention broadcasts less than matmuls do
        return
    mask = _merge_masks(rewriting.before(matmul), scores)
    arguments = (scores.query, key, value, mask, 0.0, False)
    new = rewriting.create(SDPA, arguments, {"scale": scores.scale}, matmul)
    if not (rewriting.accepted(new) and is_fused(new, rewriting.program.settings) and rewriting.replace(matmul, new)):
        rewriting.erase(new)


def _skip_copies_and_casts(node: object) -> Argument:
    """Return the input of a chain of copies and casts that ends at ``node``; ``node`` itself if it is neither."""
    while isinstance(node, Node) and (is_copy(node) or is_cast(node)):
        node = node.args[0]
    return node


def _is_only_reader_of_chain(last: object, first: Node, reader: Node) -> bool:
    """Return whether ``reader`` alone reads ``last``, and each node from ``first`` on is read only by the next node."""
    while isinstance(last, Node) and only_reader(last) is reader:
        if last is first:
            return True
        reader, last = last, last.args[0]
    return False


def _match_scores(rewriting: Rewriting, node: object, reader: Node) -> Steps[Scores | None]:
    """Match a node as attention scores (query @ key, scaled and masked) that only ``reader`` reads. A generator:
    `evaluate_recursively` returns its `Scores`, or None if the node does not match."""
    if not isinstance(node, Node) or only_reader(node) is not reader:
        return None
    if node.target in PRODUCTS:
        query, key = node.args[:2]
        return Scores(query, key) if isinstance(query, Node) and isinstance(key, Node) else None
    found: Scores | None
    if is_copy(node) or is_cast(node):
        found = yield _match_scores, rewriting, node.args[0], node
    elif node.target in (aten.mul.Tensor, aten.div.Tensor):
        found = yield _match_scaled_scores, rewriting, node
    elif node.target is aten.add.Tensor and not node.kwargs:
        found = yield _match_added_mask, rewriting, node
    else:
        found = yield _match_where_mask, rewriting, node
    return found


def _match_scaled_scores(rewriting: Rewriting, node: Node) -> Steps[Scores | None]:
    """Match attention scores that are multiplied or divided by a number; None if a mask was applied before."""
    for inner, other in [node.args[:2]] if node.target is aten.div.Tensor else both_orders(node):
        factor = rewriting.known_number(other)
        found: Scores | None = (yield _match_scores, rewriting, inner, node) if factor else None
        if factor and found is not None and not found.added and not found.allowed:
            return evolve(found, scale=found.scale * (factor if node.target is aten.mul.Tensor else 1 / factor))
    return None


def _match_added_mask(rewriting: Rewriting, node: Node) -> Steps[Scores | None]:
    """Match scores plus a floating-point mask. A generator: `evaluate_recursively` returns its `Scores` or None."""
    for inner, mask in both_orders(node):
        if not isinstance(mask, Node) or dtype_of(mask) not in FLOATS:
            continue
        found: Scores | None = yield _match_scores, rewriting, inner, node
        if found is not None:
            return evolve(found, added=(*found.added, mask))
    return None


def _match_where_mask(rewriting: Rewriting, node: Node) -> Steps[Scores | None]:
    """Match scores that ``where`` or ``masked_fill`` replaces by a large negative number where a mask says so. A
    generator: `evaluate_recursively` returns its `Scores` or None."""
    allows = False
    if node.target is aten.masked_fill.Scalar or node.target is aten.masked_fill.Tensor:
        inner, condition, filled = node.args[:3]
    elif node.target is aten.where.self:
        condition, inner, filled = node.args[:3]
        allows = rewriting.known_number(filled) is not None
        if not allows:
            inner, filled = filled, inner
    else:
        return None
    number = rewriting.known_number(filled)
    if number is None or number > BLOCKED or not isinstance(condition, Node):
        return None
    found: Scores | None = yield _match_scores, rewriting, inner, node
    if found is None:
        return None
    finite = found.finite or number != -math.inf
    while condition.target in NOT and isinstance(condition.args[0], Node):
        if dtype_of(condition.args[0]) != torch.bool:
            break
        condition, allows = condition.args[0], not allows
    return evolve(found, allowed=(*found.allowed, (condition, allows)), finite=finite)


def _has_unmasked_position_in_every_row(rewriting: Rewriting, scores: Scores) -> bool:
    """Return whether boolean masks with known values leave at least one unmasked position in every row."""
    known = [(rewriting.known_value(condition), allows) for condition, allows in scores.allowed]
    rows = [value if allows else value.logical_not() for value, allows in known if value is not None]
    if len(rows) < len(known):
        return False
    return bool(reduce(torch.logical_and, rows).any(-1).all())


def _transpose_key(rewriting: Rewriting, key: Node, before: Node) -> Node:
    """Return the key with its last two dims swapped, as attention reads it; undo the model's transposition."""
    source = _skip_copies_and_casts(key)
    if is_permutation(source) and dtype_of(source) == dtype_of(key):
        rank, order = rank_of(source), permuted_dims(source)
        if order == [*range(rank - 2), rank - 1, rank - 2]:
            return source_of(source)  # type: ignore[no-any-return]
    return rewriting.create(aten.transpose.int, (key, -2, -1), {}, before)


def _merge_masks(create: CallBuilder, scores: Scores) -> Node | None:
    """Merge all masks into one: boolean if all are boolean, else in the query's dtype; None if there are none.

    Attention requires a mask of at least two dims, while scores broadcast with any rank.
    """
    allowed = [n if allows else create(aten.logical_not.default, n) for n, allows in scores.allowed]
    mask = condition = reduce(partial(create, aten.logical_and.default), allowed) if allowed else None
    if scores.added:
        total = reduce(partial(create, aten.add.Tensor), scores.added)
        mask = create.cast(total, dtype_of(scores.query))
        if condition is not None:
            lowest = create(aten.full.default, [], -math.inf, dtype=dtype_of(scores.query))
            mask = create(aten.where.self, condition, mask, lowest)
    while mask is not None and rank_of(mask) < 2:
        mask = create(aten.unsqueeze.default, mask, 0)
    return mask
