"""Recognize and declare open masks: masks that leave a key to attend to in every row."""

from __future__ import annotations

import math
from typing import Any

from pipeline.aten.arguments import argument
from pipeline.aten.own_ops import OPEN_MASK
from pipeline.converters.attention import is_open
from pipeline.improvements.rewriting import Node, Rewriting, aten

OR = (aten.logical_or.default, aten.bitwise_or.Tensor)
NOT = (aten.logical_not.default, aten.bitwise_not.default)


def declared_open(rewriting: Rewriting, mask: Node, before: Node) -> Node:
    """Declare a mask as open in the program; return it unchanged if it is declared already."""
    return mask if is_open(mask) else rewriting.create(OPEN_MASK, (mask,), {}, before)


def is_made_open(mask: Any) -> bool:
    """Return whether a mask's computation proves that every row leaves a key: it has no minus infinity, or it opens the
    completely masked rows of another mask."""
    while isinstance(mask, Node) and mask.target is aten.expand.default:
        mask = mask.args[0]
    if not isinstance(mask, Node):
        return False
    if mask.target in OR:
        return any(_has_nothing(rows, of) for of, rows in (mask.args, mask.args[::-1]))
    if mask.target is aten.clamp.default:
        least = argument(mask, "min")
        return isinstance(least, float) and math.isfinite(least) and argument(mask, "max") is None
    if mask.target is aten.masked_fill.Scalar:
        of, rows, filled = mask.args
        return bool(filled == 0) and _has_nothing(rows, of)
    return False


def _has_nothing(rows: Any, mask: Any) -> bool:
    """Return whether one tensor marks the completely masked rows of another: ``~mask.any(-1, keepdim=True)``."""
    some = rows.args[0] if isinstance(rows, Node) and rows.target in NOT else None
    if not isinstance(some, Node) or some.target is not aten.any.dim or not argument(some, "keepdim"):
        return False
    counts: Any = some.args[0]
    if argument(some, "dim") not in (-1, counts.meta["val"].dim() - 1):
        return False
    added = isinstance(counts, Node) and counts.target is aten.ne.Scalar and counts.args[1] == -math.inf
    return (counts.args[0] if added else counts) is mask
