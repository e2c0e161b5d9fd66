"""simplify_masks: remove attention masks that hide nothing, and use ``is_causal`` instead of masks of later positions.

A mask whose rows provably all have an unmasked key is marked as open (``pipeline.open_mask``). Models compute masks
from ranges of positions, ``arange(n)[:, None] >= arange(n)``, whose sizes may be dynamic.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
from attrs import frozen

from pipeline.aten.arguments import argument
from pipeline.aten.graphs import Steps, evaluate_recursively
from pipeline.aten.own_ops import OPEN_MASK
from pipeline.aten.traits import PART, Kind, op_kind
from pipeline.aten.types import Argument, Target
from pipeline.converters.attention import promises_key_in_row
from pipeline.improvements.fuse_attention import NOT, SDPA
from pipeline.improvements.rewriting import (
    FLOATS,
    Node,
    Rewriting,
    aten,
    both_orders,
    copy_source,
    dtype_of,
    improvement,
    rank_of,
    source_of,
)
from pipeline.shapes.environment import shape_of

WRAPS = (aten.expand.default, aten._to_copy.default, aten.unsqueeze.default)
"""Operators that return the elements of a mask's last two dims unchanged, unless the sizes of these dims change."""

AND = (aten.bitwise_and.Tensor, aten.logical_and.default)
OR = (aten.logical_or.default, aten.bitwise_or.Tensor)


@improvement(after="fuse_attention")
def simplify_masks(rewriting: Rewriting) -> None:
    """Remove masks that hide nothing; replace masks that hide later positions by ``is_causal``; and mark masks that
    leave a key unmasked in every row by ``pipeline.open_mask(mask)``, so that converters need not handle other rows."""
    shown: dict[Node, Node] = {}
    for node in rewriting.nodes(SDPA):
        mask = argument(node, "attn_mask")
        if not isinstance(mask, Node) or argument(node, "is_causal"):
            continue
        if uniform_value(rewriting, mask) == (1.0 if dtype_of(mask) == torch.bool else 0.0):
            replace_mask(rewriting, node, None)
        elif evaluate_recursively(_is_causal_mask, rewriting, mask):
            rewriting.offer(node, SDPA, (*node.args[:3], None, 0.0, True), dict(node.kwargs))
        elif not promises_key_in_row(mask) and (
            mask in shown or unmasks_every_row(mask) or _is_finite(rewriting, mask)
        ):
            if mask not in shown:
                shown[mask] = rewriting.create(OPEN_MASK, (mask,), {}, node)
            if rewriting.accepted(shown[mask]):
                replace_mask(rewriting, node, shown[mask])


def replace_mask(rewriting: Rewriting, sdpa: Node, mask: Node | None, values: Argument = None) -> None:
    """Replace the mask (and the values, if given) of the attention ``sdpa``, if a converter accepts the new call."""
    query, key, own, _, *options = sdpa.args
    rewriting.offer(sdpa, SDPA, (query, key, own if values is None else values, mask, *options), dict(sdpa.kwargs))


def uniform_value(rewriting: Rewriting, node: object) -> float | None:
    """Return the number that every element of a tensor equals; None if elements differ or are unknown."""
    bounds = evaluate_recursively(_element_bounds, rewriting, node)
    return bounds[0] if bounds is not None and bounds[0] == bounds[1] else None


def unmasks_every_row(mask: Any) -> bool:
    """Return whether the call that computes a mask proves that each row has an unmasked key: ``clamp`` excludes minus
    infinity, or the call unmasks completely masked rows, as ``mask | ~mask.any(-1, keepdim=True)`` does."""
    while isinstance(mask, Node) and mask.target is aten.expand.default:
        mask = mask.args[0]
    if not isinstance(mask, Node):
        return False
    if mask.target in OR:
        return any(_marks_fully_masked_rows(rows, of) for of, rows in (mask.args, mask.args[::-1]))
    if mask.target is aten.clamp.default:
        least = argument(mask, "min")
        return isinstance(least, float) and math.isfinite(least) and argument(mask, "max") is None
    if mask.target is aten.masked_fill.Scalar:
        of, rows, filled = mask.args
        return bool(filled == 0) and _marks_fully_masked_rows(rows, of)
    return False


def _marks_fully_masked_rows(rows: Any, mask: Any) -> bool:
    """Return whether ``rows`` marks the completely masked rows of ``mask``, as ``~mask.any(-1, keepdim=True)`` does."""
    some = rows.args[0] if isinstance(rows, Node) and rows.target in NOT else None
    if not isinstance(some, Node) or some.target is not aten.any.dim or not argument(some, "keepdim"):
        return False
    counts: Any = some.args[0]
    if argument(some, "dim") not in (-1, counts.meta["val"].dim() - 1):
        return False
    added = isinstance(counts, Node) and counts.target is aten.ne.Scalar and counts.args[1] == -math.inf
    return (counts.args[0] if added else counts) is mask


def _is_finite(rewriting: Rewriting, mask: Node) -> bool:
    """Return whether an additive mask, which is computed in each call, provably has only finite elements."""
    if dtype_of(mask) not in FLOATS or rewriting.is_constant(mask):
        return False
    bounds = evaluate_recursively(_element_bounds, rewriting, mask)
    return bounds is not None and all(map(math.isfinite, bounds))


Bounds: TypeAlias = tuple[float, float]
"""The smallest and largest possible element of a tensor, rounded to its dtype; infinite if out of its range."""

ANY_BOOL: Bounds = (0.0, 1.0)


def _element_bounds(rewriting: Rewriting, node: object) -> Steps[Bounds | None]:
    """Return the lower and upper bound of a tensor's elements; None if unknown."""
    if not isinstance(node, Node):
        return (float(node), float(node)) if isinstance(node, bool | int | float) and node == node else None
    found = rewriting.known_value(node)
    if found is not None:
        return (float(found.min()), float(found.max())) if found.numel() and not found.isnan().any() else None
    dtype = dtype_of(node)
    bounds: Bounds | None = yield _bounds_before_rounding, rewriting, node
    if dtype == torch.bool:
        return bounds or ANY_BOOL
    if bounds is None or dtype not in FLOATS:
        return bounds
    low, high = torch.tensor(bounds, dtype=torch.float64).to(dtype).tolist()
    return low, high


def _bounds_before_rounding(rewriting: Rewriting, node: Node) -> Steps[Bounds | None]:
    """Compute `_element_bounds`, through `evaluate_recursively`, but do not round the bounds to the node's dtype."""
    args: Argument = node.args
    if node.target is aten.arange.default:
        return 0.0, math.inf
    filled: dict[Target, tuple[Argument, ...]] = {
        aten.full.default: args[1:2],
        aten.where.self: args[1:],
        aten.masked_fill.Scalar: args[::2],
    }
    taken = filled.get(node.target)
    if node.target is aten.where.self:
        low, high = (yield _element_bounds, rewriting, args[0]) or ANY_BOOL
        taken = taken if low != high else args[1:2] if low else args[2:]
    if taken is not None:
        each: list[Bounds] = []
        for one in taken:
            if (bounds := (yield _element_bounds, rewriting, one)) is None:
                return None
            each.append(bounds)
        lows, highs = zip(*each, strict=True)
        return min(lows), max(highs)
    if node.target in AND and dtype_of(node) == torch.bool:
        a = (yield _element_bounds, rewriting, args[0]) or ANY_BOOL
        b = (yield _element_bounds, rewriting, args[1]) or ANY_BOOL
        return a[0] * b[0], a[1] * b[1]
    if node.target is aten.eq.Tensor:
        a, b = (yield _element_bounds, rewriting, args[0]), (yield _element_bounds, rewriting, args[1])
        known = a is not None and b is not None and a[0] == a[1] and b[0] == b[1]
        return (float(a == b), float(a == b)) if known else None
    shifted = node.target is aten.add.Tensor and isinstance(args[1], int) and not node.kwargs
    known = shifted or op_kind(node.target) in (*PART, Kind.CASTS) or node.target is aten.ge.Scalar
    inner = (yield _element_bounds, rewriting, args[0]) if known else None
    if inner is None:
        return None
    if node.target is aten.ge.Scalar:
        return (1.0, 1.0) if isinstance(args[1], int | float) and inner[0] >= args[1] else None
    if shifted:
        return inner[0] + args[1], inner[1] + args[1]
    if dtype_of(node) == torch.bool:
        return (1.0, 1.0) if inner[0] > 0 or inner[1] < 0 else (0.0, 0.0) if inner == (0, 0) else None
    return None if dtype_of(args[0]) in FLOATS and dtype_of(node) not in FLOATS else inner  # a cast to integers


def _is_causal_mask(rewriting: Rewriting, node: Node) -> Steps[bool]:
    """Return whether a boolean mask is causal: true exactly where the key's position is at most the query's."""
    node = copy_source(node)
    found = rewriting.known_value(node)
    if found is not None and found.dtype == torch.bool and found.dim() >= 2:
        return torch.equal(found, torch.ones_like(found).tril())
    if node.target in WRAPS:
        source = source_of(node)
        same = rank_of(source) >= 2 and shape_of(source.meta["val"])[-2:] == shape_of(node.meta["val"])[-2:]
        leading = node.target is not aten.unsqueeze.default or argument(node, "dim") % rank_of(node) < rank_of(node) - 2
        return same and leading and dtype_of(source) == torch.bool and (yield _is_causal_mask, rewriting, source)
    if node.target is aten.tril.default:
        return argument(node, "diagonal") == 0 and uniform_value(rewriting, node.args[0]) == 1.0
    if node.target in AND:
        for one, other in both_orders(node):
            if uniform_value(rewriting, one) == 1.0 and isinstance(other, Node):
                return rank_of(other) == rank_of(node) and (yield _is_causal_mask, rewriting, other)
        return False
    if node.target is aten.le.Tensor or node.target is aten.ge.Tensor:
        sides = node.args if node.target is aten.le.Tensor else node.args[::-1]
        key, query = (evaluate_recursively(_match_range, rewriting, side) for side in sides)
        return key is not None and query is not None and key == Range(1, query.start) and query.dim == 2
    return False


@frozen
class Range:
    """A tensor that counts up by 1 from ``start`` along one dim, the ``dim``-th from the last (1: the last dim)."""

    dim: int
    start: int


def _match_range(rewriting: Rewriting, node: object) -> Steps[Range | None]:
    """Return, through `evaluate_recursively`, the `Range` of a tensor such as ``arange(n) + 2``; None for others."""
    if not isinstance(node, Node):
        return None
    node = copy_source(node)
    found = rewriting.known_value(node)
    if found is not None:
        return _match_constant_range(found)
    if node.target is aten.arange.default:
        return Range(1, 0) if dtype_of(node) in (torch.int32, torch.int64) else None
    inner = (yield _match_range, rewriting, node.args[0]) if node.args else None
    if inner is None:
        return None
    if node.target is aten.add.Tensor and isinstance(node.args[1], int) and not node.kwargs:
        return Range(inner.dim, inner.start + node.args[1])
    if node.target is aten.unsqueeze.default:
        at = rank_of(node) - argument(node, "dim") % rank_of(node)
        return Range(inner.dim + (at <= inner.dim), inner.start)
    return None


def _match_constant_range(values: torch.Tensor) -> Range | None:
    """Match a constant as a range that counts up by 1 along its only dim whose size is not 1; else return None."""
    dims = [dim for dim, size in enumerate(values.shape) if size > 1]
    if len(dims) != 1 or values.dtype not in (torch.int32, torch.int64):
        return None
    flat = values.flatten()
    start = int(flat[0])
    counts = torch.equal(flat, torch.arange(start, start + len(flat), dtype=values.dtype))
    return Range(values.dim() - dims[0], start) if counts else None
