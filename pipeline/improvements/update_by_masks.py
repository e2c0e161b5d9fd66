"""update_by_masks: compute an update of masked elements for all elements, then select results by the mask."""

from __future__ import annotations

import torch
from attrs import field, frozen
from torch.fx.node import map_arg
from torch.utils._pytree import tree_flatten

from pipeline.aten.op_predicates import branch_only_reason, is_pointwise
from pipeline.aten.traits import Kind, op_kind
from pipeline.improvements.index_by_masks import is_mask_of_leading_dims
from pipeline.improvements.rewriting import Argument, Node, Rewriting, argument, aten, improvement, rank_of, shape_of

DEEPEST = 16
"""The maximum number of consecutive operators between the masked read and the masked write."""


@improvement(after="index_by_masks")
def update_by_masks(rewriting: Rewriting) -> None:
    """Replace `x[mask] += w`, and `x[mask] = f(y[mask])` for elementwise `f`, by `torch.where(mask, f(y), x)`.

    The number of masked elements is data-dependent, and TensorRT-RTX has no layer that selects masked elements.
    """
    for node in rewriting.nodes(aten.index_put.default):
        x, value = argument(node, "self"), argument(node, "values")
        mask = _only_index_as_mask(x, argument(node, "indices"))
        if mask is None or argument(node, "accumulate"):
            continue
        update = _MaskedUpdate(rewriting, node, mask)
        if update.uses_mask(value) and update.can_compute_for_all_elements(value):
            for _ in range(rank_of(x) - rank_of(mask)):
                mask = rewriting.create(aten.unsqueeze.default, (mask, -1), {}, node)
            rewriting.offer(node, aten.where.self, (mask, update.compute_for_all_elements(value), x))


@frozen
class _MaskedUpdate:
    """A write by a mask, with methods that examine and rewrite the computation of the written values."""

    rewriting: Rewriting
    node: Node
    mask: Node
    _reads: dict[Node, bool] = field(factory=dict)
    _whole: dict[Node, Argument] = field(factory=dict)

    def uses_mask(self, value: Argument, depth: int = DEEPEST) -> bool:
        """Return whether a value depends on masked elements, those that ``y[mask]`` reads."""
        if not isinstance(value, Node) or not depth:
            return False
        if value not in self._reads:
            sources = value.all_input_nodes if _is_elementwise(value) else ()
            self._reads[value] = self._is_masked_read(value) or any(self.uses_mask(each, depth - 1) for each in sources)
        return self._reads[value]

    def can_compute_for_all_elements(self, value: Argument) -> bool:
        """Return whether a value, computed for masked elements only, can be computed for all elements instead."""
        if not isinstance(value, Node) or self._is_masked_read(value):
            return True
        if not self.uses_mask(value):
            return isinstance(value.meta.get("val"), torch.Tensor) and self._is_broadcast_to_masked_elements(value)
        return all(map(self.can_compute_for_all_elements, value.all_input_nodes))

    def compute_for_all_elements(self, value: Argument) -> Argument:
        """Return a node that computes a value such as ``f(y[mask])`` for all elements: ``f(y)``."""
        if not isinstance(value, Node) or not self.uses_mask(value):
            return value
        if value not in self._whole:
            if self._is_masked_read(value):
                self._whole[value] = value.args[0]
            else:
                args, kwargs = map_arg((value.args, dict(value.kwargs)), self.compute_for_all_elements)
                self._whole[value] = self.rewriting.create(value.target, args, kwargs, self.node)
        return self._whole[value]

    def _is_masked_read(self, value: Argument) -> bool:
        """Return whether a value is ``y[mask]``, where the write is ``x[mask] = …`` and ``y`` has the rank of ``x``."""
        if not isinstance(value, Node) or value.target is not aten.index.Tensor:
            return False
        picked, written = argument(value, "self"), argument(self.node, "self")
        found = _only_index_as_mask(picked, argument(value, "indices")) if rank_of(picked) == rank_of(written) else None
        return found is not None and _is_same_computation(found, self.mask)

    def _is_broadcast_to_masked_elements(self, value: Node) -> bool:
        """Return whether a value is broadcast along the dim of masked elements, and so equal for all of them."""
        sizes = shape_of(value.meta["val"])
        picked = rank_of(argument(self.node, "self")) - rank_of(self.mask) + 1
        return len(sizes) < picked or (len(sizes) == picked and sizes[0] == 1)


def _is_elementwise(node: Node) -> bool:
    """Return whether an operator computes each element independently and never raises, whatever the values."""
    if not is_pointwise(node) and op_kind(node.target) is not Kind.CASTS:
        return False
    return not branch_only_reason(node.target, node.args, node.meta["val"])


def _is_same_computation(a: Argument, b: Argument, depth: int = DEEPEST) -> bool:
    """Return whether two values are computed in the same way, for example a mask expression that a model repeats."""
    if not isinstance(a, Node) or not isinstance(b, Node) or a is b:
        return a is b or (type(a) is type(b) and not isinstance(a, Node) and bool(a == b))
    if not depth or a.op != "call_function" or a.target != b.target or op_kind(a.target) is Kind.DRAWS:
        return False
    (ours, one), (theirs, other) = tree_flatten((a.args, dict(a.kwargs))), tree_flatten((b.args, dict(b.kwargs)))
    return one == other and all(_is_same_computation(x, y, depth - 1) for x, y in zip(ours, theirs, strict=True))


def _only_index_as_mask(x: Argument, indices: object) -> Node | None:
    """Return the only index if it is a mask with the sizes of the leading dims of ``x``; else None."""
    if not isinstance(indices, list | tuple) or len(indices) != 1 or not isinstance(indices[0], Node):
        return None
    return indices[0] if is_mask_of_leading_dims(indices[0], x) else None
