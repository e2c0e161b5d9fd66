"""Find the first of consecutive positions, if the graph shows that an index counts up from it."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from pipeline.aten.arguments import argument
from pipeline.aten.graphs import Steps, evaluated
from pipeline.aten.traits import Does, does
from pipeline.improvements.rewriting import Node, Rewriting, aten, rank_of
from pipeline.shapes.environment import shape_of

Start: TypeAlias = "Node | int"
"""The first position: a tensor whose last dim is 1 or absent, a size, or a number."""

INTS = (torch.int64, torch.int32)
RANGES = (aten.arange.default, aten.arange.start, aten.arange.start_step)
ADDS = (aten.add.Tensor, aten.add.Scalar)


def first_position(rewriting: Rewriting, index: Node) -> Start | None:
    """Return the first position of an index whose last dim counts up by 1; None if the graph does not show that."""
    shape = shape_of(index.meta["val"])
    if not shape or shape[-1] == 1:
        return index
    return evaluated(_start_of_range, rewriting, index)


def _start_of_range(rewriting: Rewriting, node: Any) -> Steps[Start | None]:
    """Return the first position of a tensor that counts up along its last dim; None if unknown."""
    if not isinstance(node, Node):
        return None
    if node.op == "placeholder":
        return _literal(rewriting, node)
    if node.target in RANGES:
        return _ranged(node)
    found: Start | None = None
    if node.target in ADDS:
        found = yield _start_of_sum, rewriting, node
        return found
    same = (does(node.target) is Does.CASTS and node.meta["val"].dtype in INTS) or does(node.target) is Does.COPIES
    same = same or (does(node.target) in (Does.SQUEEZES, Does.RESHAPES, Does.SELECTS) and _is_same_row(node))
    if same:
        found = yield _start_of_range, rewriting, node.args[0]
    return found


def _literal(rewriting: Rewriting, node: Node) -> Start | None:
    value = rewriting.literal(node)
    if value is None or value.dtype not in INTS or not value.numel():
        return None
    start = int(value.flatten()[0])
    counted = start + torch.arange(value.shape[-1]).expand(value.shape)
    return start if torch.equal(value.to(torch.int64), counted) else None


def _ranged(node: Node) -> Start | None:
    if node.meta["val"].dtype not in INTS:
        return None
    if node.target is aten.arange.default:
        return 0
    if node.target is aten.arange.start_step and argument(node, "step") != 1:
        return None
    start: Any = argument(node, "start")
    return start if isinstance(start, Node) or type(start) is int else None


def _start_of_sum(rewriting: Rewriting, node: Node) -> Steps[Start | None]:
    """Return the first position of a sum: a range plus a start."""
    if argument(node, "alpha") != 1 or node.meta["val"].dtype not in INTS:
        return None
    orders: list[Any] = [node.args[:2], node.args[1::-1]]
    for counting, other in orders:
        if not _is_start(other):
            continue
        start = yield _start_of_range, rewriting, counting
        if start is not None:
            return other if start == 0 else None
    return None


def _is_start(value: Any) -> bool:
    """Return whether a value can be the start of a row's positions: a number, or a tensor with one element per row."""
    if isinstance(value, Node) and isinstance(value.meta.get("val"), torch.Tensor):
        shape = shape_of(value.meta["val"])
        return not shape or shape[-1] == 1
    return isinstance(value, Node) or type(value) is int


def _is_same_row(node: Node) -> bool:
    """Return whether a node returns its input's single row of positions with other leading dims."""
    source = node.args[0]
    if not isinstance(source, Node) or not rank_of(source) or not rank_of(node):
        return False
    before, after = shape_of(source.meta["val"]), shape_of(node.meta["val"])
    return before[-1] == after[-1] and all(size == 1 for size in (*before[:-1], *after[:-1]))
