"""Predicates for the operators that TensorRT may fuse into a reduction kernel."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Final

import torch

from pipeline.aten.op_predicates import is_pointwise, moves_elements
from pipeline.aten.traits import Kind, op_kind
from pipeline.aten.types import Argument, aten
from pipeline.shapes.environment import Expr, Shape, shape_of

REDUCING: Final = (Kind.NORMALIZES, Kind.SOFTENS, Kind.REDUCES, Kind.POOLS)
"""Kinds of operators that reduce elements; the first two kinds return as many elements as they read."""
MOVING: Final = (Kind.REORDERS, Kind.REPEATS, Kind.SELECTS, Kind.MIXES, Kind.RESAMPLES)
"""Kinds of operators that may be elementwise if input and result have the same shape, as ``tril`` is."""


def has_reduction(node: torch.fx.Node) -> bool:
    """Return whether an operator includes a reduction, as a group norm does (a batch norm in inference does not)."""
    kind = op_kind(node.target)
    return kind in REDUCING or (kind is Kind.SCALES and bool(re.search("group|instance", str(node.target))))


def keeps_positions(node: torch.fx.Node) -> bool:
    """Return whether each result element may depend only on input elements at its own position: True for elementwise
    operators, and for views that keep the shape, although some of these, such as a flip, move elements."""
    if node.target is operator.getitem or is_pointwise(node) or moves_elements(node):
        return True
    given = node.all_input_nodes
    return op_kind(node.target) in MOVING and bool(given) and node_shape(given[0]) == node_shape(node)


def node_shape(node: torch.fx.Node) -> Shape | None:
    """Return the sizes of a node; None if the node is not a tensor."""
    value = node.meta.get("val")
    return shape_of(value) if isinstance(value, torch.Tensor) else None


ADDING: Final[Mapping[object, int]] = {
    **dict.fromkeys((aten.addmm.default, aten.baddbmm.default, aten.addbmm.default, aten.addmv.default), 0),
    aten.linear.default: 2,
}
"""For each matmul operator that also adds an operand, the index of this operand among the arguments."""


def expandable_inputs(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the inputs that an operator broadcasts, and that can be expanded before it without changing its result."""
    given, size = node.all_input_nodes, node_shape(node)
    if not is_pointwise(node):
        added: Argument = ADDING.get(node.target)
        given = [] if added is None else [x for x in node.args[added : added + 1] if isinstance(x, torch.fx.Node)]
    return [x for x in given if is_broadcast(node_shape(x), size) and _keeps_dtype(x, node)]


def _keeps_dtype(operand: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Return whether ``node`` keeps its dtype if ``operand`` is expanded: a 0-d one counts less in type promotion."""
    conditions = node.args[:1] if node.target is aten.where.self else ()
    if node_shape(operand) != () or operand in conditions:
        return True
    counted = (x for x in node.all_input_nodes if x not in conditions and node_shape(x) is not None)
    return len({x.meta["val"].dtype for x in counted}) == 1


def is_broadcast(shape: Shape | None, target: Shape | None) -> bool:
    """Return whether a tensor of this shape has a dim that is expanded if it is broadcast to ``target``."""
    if shape is None or target is None or len(shape) > len(target):
        return False
    return any(new != -1 for new in sizes_for_expand(shape, target))


def sizes_for_expand(shape: Shape, target: Shape) -> list[Expr]:
    """Return the sizes for ``expand`` from ``shape`` to ``target``: new sizes of expanded dims, -1 for other dims."""
    padded = (1,) * (len(target) - len(shape)) + shape
    return [new if old == 1 and new != 1 else -1 for old, new in zip(padded, target, strict=True)]
