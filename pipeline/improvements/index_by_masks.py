"""index_by_masks: index by a mask itself, instead of by the positions at which the mask is true."""

from __future__ import annotations

import torch

from pipeline.aten.types import Argument
from pipeline.improvements.rewriting import Node, Rewriting, argument, aten, dtype_of, improvement, is_item, rank_of
from pipeline.shapes.environment import shape_of

POSITIONS = (aten.where.default, aten.nonzero_numpy.default)
"""Operators that return the coordinates of a mask's true elements, as one tensor for each dim."""


@improvement(after="simplify_masks")
def index_by_masks(rewriting: Rewriting) -> None:
    """Replace `x[torch.where(mask)] = 0` by `x[mask] = 0`.

    Only the first computes the positions, whose number is data-dependent; TensorRT-RTX has no layer for that.
    """
    for node in rewriting.nodes(aten.index_put.default):
        mask = _mask_of_coordinates(argument(node, "self"), argument(node, "indices"))
        if mask is not None:
            rewriting.offer(node, node.target, (node.args[0], [mask], *node.args[2:]), dict(node.kwargs))


def _mask_of_coordinates(x: Argument, indices: object) -> Node | None:
    """Return ``mask`` if the indices of ``x`` are all the results of ``torch.where(mask)``, in order; else None."""
    if not isinstance(indices, list | tuple) or not indices:
        return None
    if not all(isinstance(each, Node) and is_item(each) for each in indices):
        return None
    given = [(each.args[0], each.args[1]) for each in indices]
    found = given[0][0]
    if given != [(found, dim) for dim in range(len(indices))] or found.target not in POSITIONS:
        return None
    mask: Node = found.args[0]
    return mask if rank_of(mask) == len(indices) and is_mask_of_leading_dims(mask, x) else None


def is_mask_of_leading_dims(mask: Node, x: Node) -> bool:
    """Return whether a mask is boolean and has the sizes of the leading dims of ``x``."""
    sizes = shape_of(mask.meta["val"])
    return bool(sizes) and dtype_of(mask) == torch.bool and sizes == shape_of(x.meta["val"])[: len(sizes)]
