"""merge_head_views: reshape a projection to attention heads before slicing it into queries, keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from attrs import frozen
from torch.utils._pytree import tree_leaves

from pipeline.aten.arguments import argument
from pipeline.aten.traits import Kind, op_kind
from pipeline.improvements.rewriting import Node, Rewriting, aten, improvement, is_item, is_output, only_reader, rank_of
from pipeline.shapes.environment import shape_of

SPLITS = (aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default)


@improvement(after="merge_linears")
def merge_head_views(rewriting: Rewriting) -> None:
    """Replace slices of a last dim that are each reshaped to heads: reshape first, then slice the heads.

    TensorRT-RTX 1.4 then reorders the queries, keys and values of an attention with one kernel instead of three.
    """
    for node in list(rewriting.graph.nodes):
        parts = list(_head_slices(node))
        width = parts[0].width if len(parts) > 1 else 0
        starts = [node.meta["val"].shape[-1], *(part.start for part in parts)] if width else []
        if starts and {part.width for part in parts} == {width} and all(start % width == 0 for start in starts):
            first = min(part.view for part in parts)
            sizes = [node.meta["val"].shape[-1] // width, width]
            whole = rewriting.create(aten.unflatten.int, (node, rank_of(node) - 1, sizes), {}, first)
            for part in parts if rewriting.accepted(whole) else ():
                start = part.start // width
                heads = (whole, rank_of(whole) - 2, start, start + part.heads)
                rewriting.offer(part.view, aten.slice.Tensor, heads)


@frozen
class HeadSlice:
    """A slice of a projection's last dim, from ``start``; ``view`` reshapes it to attention heads [heads, width]."""

    view: Node
    start: int
    heads: int
    width: int


def _head_slices(node: Node) -> Iterator[HeadSlice]:
    """Yield the slices of a node's last dim that are only read by a reshape to heads."""
    for piece, start in last_dim_slices_with_starts(node):
        view = only_reader(piece)
        if view is None or op_kind(view.target) is not Kind.RESHAPES or is_output(view):
            continue
        seen, given = shape_of(view.meta["val"]), shape_of(piece.meta["val"])
        splits_last = len(seen) == len(given) + 1 and seen[:-2] == given[:-1]
        if splits_last and all(isinstance(size, int) for size in seen[-2:]):
            yield HeadSlice(view, start, *view.meta["val"].shape[-2:])


def last_dim_slices_with_starts(node: Node) -> Iterator[tuple[Node, int]]:
    """Yield the slices of a node's last dim, each with the index at which it starts."""
    for user in node.users:
        if user.op != "call_function" or user.args[0] is not node:
            continue
        if user.target in SPLITS and _slices_last_dim(user, node):
            starts = list(accumulate((piece.shape[-1] for piece in user.meta["val"]), initial=0))
            yield from ((item, starts[item.args[1]]) for item in user.users if is_item(item))  # type: ignore[index]
        elif user.target is aten.slice.Tensor and _slices_last_dim(user, node) and argument(user, "step") == 1:
            start = argument(user, "start") or 0
            if isinstance(start, int) and start >= 0:
                yield user, start


def _slices_last_dim(user: Node, node: Node) -> bool:
    sizes = [node.meta["val"].shape[-1], *(piece.shape[-1] for piece in tree_leaves(user.meta["val"]))]
    last = argument(user, "dim") % rank_of(node) == rank_of(node) - 1
    return last and all(isinstance(size, int) for size in sizes)
