"""Find indices that the graph proves to be non-negative, so that no layers are needed to wrap negative indices."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from pipeline.aten.arguments import argument
from pipeline.aten.traits import PART, Kind, op_kind
from pipeline.aten.types import aten

DEEP = 12
"""The maximum number of consecutive operators that are examined for one index."""


def non_negative_positions(indices: Sequence[Any]) -> frozenset[int]:
    """Return the positions of the provably non-negative tensors in a list of index tensors."""
    return frozenset(i for i, each in enumerate(indices) if each is not None and is_non_negative(each))


def is_non_negative(value: Any, max_depth: int = DEEP) -> bool:
    """Return whether a number or a node's result is provably non-negative."""
    if isinstance(value, (bool, int, torch.SymInt)):
        return statically_known_true(value >= 0)
    if not isinstance(value, torch.fx.Node) or max_depth == 0:
        return False
    known = value.meta.get("val")
    if isinstance(known, torch.SymInt):
        return statically_known_true(known >= 0)
    if isinstance(known, torch.Tensor) and known.dtype in (torch.bool, torch.uint8):
        return True
    source = value.args[0] if value.target is operator.getitem else value
    kind = op_kind(source.target) if isinstance(source, torch.fx.Node) else None
    if kind in PART:
        return is_non_negative(value.args[0], max_depth - 1)
    rule = RULES.get(value.target, _is_cast_of_non_negative if kind is Kind.CASTS else None)
    return kind is Kind.PLACES or (rule is not None and rule(value, max_depth - 1))


def _is_non_negative_arange(node: torch.fx.Node, depth: int) -> bool:
    return is_non_negative(argument(node, "start", 0), depth) and is_non_negative(argument(node, "step", 1), depth)


def _are_operands_non_negative(node: torch.fx.Node, max_depth: int) -> bool:
    """Return whether both operands of a node are provably non-negative, and no ``alpha`` changes a sign."""
    return not node.kwargs and all(is_non_negative(value, max_depth) for value in node.args[:2])


def _is_cast_of_non_negative(node: torch.fx.Node, max_depth: int) -> bool:
    """Return whether a node casts provably non-negative values to an integer dtype that does not overflow for them."""
    return node.meta["val"].dtype in (torch.int32, torch.int64) and is_non_negative(node.args[0], max_depth)


def _is_clamped_to_non_negative(node: torch.fx.Node, max_depth: int) -> bool:
    low = argument(node, "min")
    return low is not None and is_non_negative(low, max_depth)


RULES: Mapping[Any, Callable[[torch.fx.Node, int], bool]] = {
    aten.arange.default: _is_non_negative_arange,
    aten.arange.start: _is_non_negative_arange,
    aten.arange.start_step: _is_non_negative_arange,
    aten.add.Tensor: _are_operands_non_negative,
    aten.mul.Tensor: _are_operands_non_negative,
    aten.maximum.default: lambda node, depth: any(is_non_negative(a, depth) for a in node.args[:2]),
    aten.minimum.default: _are_operands_non_negative,
    aten.clamp.default: _is_clamped_to_non_negative,
    aten.clamp_min.default: _is_clamped_to_non_negative,
    aten.full.default: lambda node, depth: is_non_negative(node.args[1], depth),
}
