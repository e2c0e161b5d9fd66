"""masked_rows: return 0 for completely masked rows of an attention, as PyTorch does, where softmax returns NaN.

A separate selection after each attention would cost a kernel. A mask that is the same for all queries (padding, say)
masks whole batches: the pass sets their values to 0, in the kernel that already reorders the values. Otherwise a linear
layer usually follows, which turns rows of zeros into its bias: the pass selects the bias after the linear layer, where
TensorRT already has a kernel for elementwise operators. The attention's new mask hides nothing in such rows.
"""

from __future__ import annotations

import math

import torch
from attrs import frozen

from pipeline.aten.arguments import argument
from pipeline.aten.own_ops import OPEN_MASK
from pipeline.aten.traits import Does, does
from pipeline.converters.attention import is_open
from pipeline.improvements.fuse_attention import SDPA
from pipeline.improvements.rewriting import (
    FLOATS,
    Node,
    Rewriting,
    alike,
    aten,
    dtype_of,
    improvement,
    is_copy,
    is_output,
    is_transposed,
    only_reader,
    orders,
    permutation,
    rank_of,
)
from pipeline.improvements.simplify_masks import AND, constant_of, is_made_open, with_mask
from pipeline.shapes.environment import bounds, shape_of


@frozen
class Projection:
    """The linear layer after an attention: its result [B, Q, N], and its bias, the result for rows of zeros."""

    node: Node
    bias: Node | None


@frozen
class Opened:
    """A mask that leaves a key in every row; where the original mask does, as [B, H, Q, 1] and [B, Q, 1]."""

    mask: Node
    alive: Node
    rows: Node


@improvement(after="update_by_masks")
def masked_rows(rewriting: Rewriting) -> None:
    """Return 0 for completely masked rows, as eager does, at the least cost: from values of 0 if a whole batch is
    masked, else by a selection after the linear layer that follows the attention."""
    opened: dict[Node, Opened | None] = {}

    def once(mask: Node, before: Node) -> Opened | None:
        if mask not in opened:
            opened[mask] = _opened(rewriting, mask, before)
        return opened[mask]

    for node in rewriting.nodes(SDPA):
        mask = None if rewriting.is_slow(node) else argument(node, "attn_mask")
        if not isinstance(mask, Node) or is_open(mask) or is_made_open(mask) or rewriting.literal(mask) is not None:
            continue  # a literal that the converter examines
        row, projection = None if _is_one_query(rewriting, node) else _one_row(rewriting, mask), _projection(node)
        one_head = rank_of(mask) >= 2 and all(size == 1 for size in shape_of(mask.meta["val"])[-3:-2])
        if row is None and (projection is None or not one_head):
            continue
        made = once(row or mask, node)
        if made is not None and row is not None:
            _without_values(rewriting, node, made)
        elif made is not None and projection is not None and _select(rewriting, projection, made):
            with_mask(rewriting, node, made.mask)
    for made in filter(None, opened.values()):
        for each in (made.mask, made.rows, made.alive):
            rewriting.erase(each)


def _is_one_query(rewriting: Rewriting, node: Node) -> bool:
    """Return whether an attention has one query, at least in a profile; its result is then smaller than the values. The
    build of RTX 1.4 crashes for one query of one batch, if one condition selects both in the mask and in the values."""
    shapes = rewriting.program.shapes
    length = shape_of(node.meta["val"])[-2]
    ranges = [bounds(length, {**shapes, **profile}) for profile in (*rewriting.program.profiles, {})]
    return any(each.min == each.max == 1 for each in ranges)


def _one_row(rewriting: Rewriting, mask: object) -> Node | None:
    """Return the one-row mask that this mask expands to all queries and heads; None if there is none."""
    while isinstance(mask, Node):
        if rank_of(mask) >= 2 and all(size == 1 for size in shape_of(mask.meta["val"])[-3:-1]):
            return mask
        if mask.target is aten.expand.default:
            mask = mask.args[0]
        elif mask.target in AND and dtype_of(mask) == torch.bool:
            mask = next((b for a, b in orders(mask) if constant_of(rewriting, a) == 1.0), None)
        else:
            return None
    return None


def _without_values(rewriting: Rewriting, node: Node, opened: Opened) -> None:
    """Set an attention's values to 0 in batches that are masked completely."""
    create, value = rewriting.before(node), node.args[2]
    zero = create(aten.full.default, [], 0.0, dtype=dtype_of(node))
    values = create(aten.where.self, opened.alive, value, zero)
    if rewriting.accepted(values) and alike(value, values):  # type: ignore[arg-type]
        with_mask(rewriting, node, opened.mask, values)
    create.erase_unread()


def _projection(node: Node) -> Projection | None:
    """Return the linear layer that alone reads an attention [B, H, Q, D], as [B, Q, H · D]; None if there is none."""
    if rank_of(node) != 4:
        return None
    batch, heads, length, width = shape_of(node.meta["val"])
    merged = ((batch, length, heads * width), (batch * length, heads * width))
    in_order = False
    while (reader := only_reader(node)) is not None:
        shape = shape_of(reader.meta["val"]) if dtype_of(reader) is not None else ()
        reshaped = does(reader.target) is Does.RESHAPES
        same = is_copy(reader) or (reshaped and shape == shape_of(node.meta["val"]))
        turned = not in_order and is_transposed(reader) and permutation(reader) == [0, 2, 1, 3]
        if not (same or turned or (in_order and reshaped and shape in merged)):
            return _linear(reader, node, (batch, length)) if in_order and rank_of(node) < 4 else None
        node, in_order = reader, in_order or turned
    return None


def _linear(node: Node, x: Node, leading: tuple[object, object]) -> Projection | None:
    """Return the linear layer or matmul of ``x`` at this node, with these leading dims; None for other nodes."""
    bias = None
    if node.target is aten.linear.default and node.args[0] is x:
        bias = argument(node, "bias")
    elif node.target is aten.addmm.default and node.args[1] is x and not node.kwargs:
        bias = node.args[0]
    elif node.target not in (aten.mm.default, aten.matmul.default) or node.args[0] is not x:
        return None
    if isinstance(bias, Node) and rank_of(bias) != 1:
        return None
    if rank_of(node) == 2:
        view = only_reader(node)
        if view is None or does(view.target) is not Does.RESHAPES:
            return None
        node = view
    return Projection(node, bias) if shape_of(node.meta["val"])[:-1] == leading and not is_output(node) else None


def _opened(rewriting: Rewriting, mask: Node, before: Node) -> Opened | None:
    """Return the mask with completely masked rows opened; None if converters do not accept the new operators."""
    create = rewriting.before(before)
    if dtype_of(mask) in FLOATS:
        alive = create(aten.any.dim, create(aten.ne.Scalar, mask, -math.inf), -1, True)
        everything = create(aten.masked_fill.Scalar, mask, create(aten.logical_not.default, alive), 0.0)
    else:
        alive = create(aten.any.dim, mask, -1, True)
        everything = create(aten.logical_or.default, mask, create(aten.logical_not.default, alive))
    selected = create(aten.squeeze.dim, alive, -3) if rank_of(mask) > 2 else alive
    declared = create(OPEN_MASK, everything)
    if create.accepted:
        return Opened(declared, alive, selected)
    create.erase_unread()
    return None


def _select(rewriting: Rewriting, projection: Projection, opened: Opened) -> bool:
    """Replace a linear layer's result by its bias in completely masked rows."""
    node, bias = projection.node, projection.bias
    reader = min(node.users)
    if bias is None:
        bias = rewriting.create(aten.full.default, ([], 0.0), {"dtype": dtype_of(node)}, reader)
    chosen = rewriting.create(aten.where.self, (opened.rows, node, bias), {}, reader)
    if not rewriting.accepted(chosen) or not alike(node, chosen):
        rewriting.erase(chosen)
        return False
    node.replace_all_uses_with(chosen, delete_user_cb=lambda user: user is not chosen)
    return True
