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
from pipeline.aten.traits import Kind, op_kind
from pipeline.converters.attention import promises_key_in_row
from pipeline.improvements.fuse_attention import SDPA
from pipeline.improvements.rewriting import (
    FLOATS,
    Node,
    Rewriting,
    aten,
    both_orders,
    dtype_of,
    have_same_type,
    improvement,
    is_copy,
    is_output,
    is_permutation,
    only_reader,
    permuted_dims,
    rank_of,
)
from pipeline.improvements.simplify_masks import AND, replace_mask, uniform_value, unmasks_every_row
from pipeline.shapes.environment import bounds, shape_of


@frozen
class Projection:
    """The linear layer after an attention: its result [B, Q, channels], and its bias, its result for inputs of 0."""

    node: Node
    bias: Node | None


@frozen
class OpenedMask:
    """A mask after its completely masked rows were unmasked. ``alive`` [B, H, Q, 1] is True for all other rows, which
    are unchanged; ``rows`` [B, Q, 1] is the same without dim H, to select rows of the linear layer that follows."""

    mask: Node
    alive: Node
    rows: Node


@improvement(after="update_by_masks")
def masked_rows(rewriting: Rewriting) -> None:
    """Return 0 for completely masked rows of attentions, as eager does, at the least cost: set the values to 0 if the
    mask is the same for all queries; else set rows of the following linear layer's result to its bias."""
    opened: dict[Node, OpenedMask | None] = {}
    for node in rewriting.nodes(SDPA):
        mask = None if rewriting.is_slow_attention(node) else argument(node, "attn_mask")
        if not isinstance(mask, Node) or promises_key_in_row(mask) or unmasks_every_row(mask):
            continue
        if rewriting.known_value(mask) is not None:  # the converter examines a literal
            continue
        row = None if _has_one_query(rewriting, node) else _mask_shared_by_queries(rewriting, mask)
        projection = _match_projection_of_attention(node)
        one_head = rank_of(mask) >= 2 and all(size == 1 for size in shape_of(mask.meta["val"])[-3:-2])
        if row is None and (projection is None or not one_head):
            continue
        if (row or mask) not in opened:
            opened[row or mask] = _unmask_fully_masked_rows(rewriting, row or mask, node)
        made = opened[row or mask]
        if made is not None and row is not None:
            create = rewriting.before(node)  # the values become 0 in batches whose keys are all masked
            zero = create(aten.full.default, [], 0.0, dtype=dtype_of(node))
            values = create(aten.where.self, made.alive, node.args[2], zero)
            if rewriting.accepted(values) and have_same_type(node.args[2], values):  # type: ignore[arg-type]
                replace_mask(rewriting, node, made.mask, values)
            create.erase_unread()
        elif made is not None and projection is not None and _select_bias_in_masked_rows(rewriting, projection, made):
            replace_mask(rewriting, node, made.mask)


def _has_one_query(rewriting: Rewriting, attention: Node) -> bool:
    """Return whether an attention has a single query in some profile. The pass does not set its values to 0: they are
    larger than its result, and TensorRT-RTX 1.4 crashes in the build for one query and batch size 1, if one boolean
    tensor selects elements of both the mask and the values."""
    shapes = rewriting.program.shapes
    length = shape_of(attention.meta["val"])[-2]
    ranges = [bounds(length, {**shapes, **profile}) for profile in (*rewriting.program.profiles, {})]
    return any(each.min == each.max == 1 for each in ranges)


def _mask_shared_by_queries(rewriting: Rewriting, mask: object) -> Node | None:
    """Return the mask with a single row that ``mask`` repeats for all queries and heads; None if there is none."""
    while isinstance(mask, Node):
        if rank_of(mask) >= 2 and all(size == 1 for size in shape_of(mask.meta["val"])[-3:-1]):
            return mask
        if mask.target is aten.expand.default:
            mask = mask.args[0]
        elif mask.target in AND and dtype_of(mask) == torch.bool:
            mask = next((b for a, b in both_orders(mask) if uniform_value(rewriting, a) == 1.0), None)
        else:
            return None
    return None


def _match_projection_of_attention(node: Node) -> Projection | None:
    """Return the linear layer that reads the result [B, H, Q, D] of the attention ``node``, reshaped to [B, Q, H · D];
    None if there is none, or if anything else reads the attention."""
    if rank_of(node) != 4:
        return None
    batch, heads, length, width = shape_of(node.meta["val"])
    merged = ((batch, length, heads * width), (batch * length, heads * width))
    in_order = False
    while (reader := only_reader(node)) is not None:
        shape = shape_of(reader.meta["val"]) if dtype_of(reader) is not None else ()
        reshaped = op_kind(reader.target) is Kind.RESHAPES
        same = is_copy(reader) or (reshaped and shape == shape_of(node.meta["val"]))
        turned = not in_order and is_permutation(reader) and permuted_dims(reader) == [0, 2, 1, 3]
        if not (same or turned or (in_order and reshaped and shape in merged)):
            return _match_linear(reader, node, (batch, length)) if in_order and rank_of(node) < 4 else None
        node, in_order = reader, in_order or turned
    return None


def _match_linear(node: Node, x: Node, leading_dims: tuple[object, object]) -> Projection | None:
    """Match a node as a linear layer or matmul of ``x`` whose result has these leading dims; else return None."""
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
        if view is None or op_kind(view.target) is not Kind.RESHAPES:
            return None
        node = view
    return Projection(node, bias) if shape_of(node.meta["val"])[:-1] == leading_dims and not is_output(node) else None


def _unmask_fully_masked_rows(rewriting: Rewriting, mask: Node, before: Node) -> OpenedMask | None:
    """Create a mask in which the completely masked rows of ``mask`` are unmasked, and flags of the other rows (see
    `OpenedMask`); the new nodes precede ``before``. None if a converter is missing."""
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
        return OpenedMask(declared, alive, selected)
    create.erase_unread()
    return None


def _select_bias_in_masked_rows(rewriting: Rewriting, projection: Projection, opened: OpenedMask) -> bool:
    """Set rows of a linear layer's result to its bias where ``opened.rows`` is False; return whether it was done."""
    node, bias = projection.node, projection.bias
    reader = min(node.users)
    if bias is None:
        bias = rewriting.create(aten.full.default, ([], 0.0), {"dtype": dtype_of(node)}, reader)
    chosen = rewriting.create(aten.where.self, (opened.rows, node, bias), {}, reader)
    if not rewriting.accepted(chosen) or not have_same_type(node, chosen):
        rewriting.erase(chosen)
        return False
    node.replace_all_uses_with(chosen, delete_user_cb=lambda user: user is not chosen)
    return True
