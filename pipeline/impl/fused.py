"""Which operators TensorRT may fuse into the kernel of a reduction."""

from __future__ import annotations

import operator
import re
from typing import Final

import torch

from pipeline.aten.kinds import is_pointwise, moves
from pipeline.aten.traits import Does, does
from pipeline.shapes.environment import Shape, shape_of

REDUCING: Final = (Does.NORMALIZES, Does.SOFTENS, Does.REDUCES, Does.POOLS)
"""Operators that reduce; the first two return an element for each of theirs."""
MOVING: Final = (Does.REORDERS, Does.REPEATS, Does.SELECTS, Does.MIXES, Does.RESAMPLES)
"""Operators that may move nothing at the sizes at hand, or only choose, as ``tril`` does."""


def reduces(node: torch.fx.Node) -> bool:
    """Whether an operator has a reduction: norms by groups have, unlike those of channels."""
    kind = does(node.target)
    return kind in REDUCING or (kind is Does.SCALES and bool(re.search("group|instance", str(node.target))))


def passes(node: torch.fx.Node) -> bool:
    """Whether an operator may compute each element from one of each input, or move none."""
    if node.target is operator.getitem or is_pointwise(node) or moves(node):
        return True
    given = node.all_input_nodes
    return does(node.target) in MOVING and bool(given) and node_shape(given[0]) == node_shape(node)


def node_shape(node: torch.fx.Node) -> Shape | None:
    """The sizes of a node that is a tensor."""
    value = node.meta.get("val")
    return shape_of(value) if isinstance(value, torch.Tensor) else None
