"""Passes over products that read one tensor, as queries, keys and values do: one product, and one layout for all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

from attrs import frozen
from torch.utils._pytree import tree_leaves

from pipeline.aten.arguments import argument
from pipeline.aten.naming import module_path
from pipeline.aten.traits import Does, does
from pipeline.improvements.rewriting import Node, Rewriting, aten, improvement, is_item, is_output, only_reader, rank_of
from pipeline.shapes.environment import shape_of

SPLITS = (aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default)


@improvement
def products(rewriting: Rewriting) -> None:
    """Linear layers of one module that read one tensor become one, with the weights one below the other, and slices of
    its result. Those of other modules, a hundred experts say, are needed at other times: all results at once would not
    fit. TensorRT-RTX 1.4 makes the same engine of both, but keeps a copy of all such weights while it builds: the peak
    for a Llama-like model falls from 1.74 to 1.43 times its weights."""
    groups: dict[Any, list[Node]] = {}
    for node in rewriting.nodes(aten.linear.default):
        if _may_be_merged(rewriting, node):
            module = module_path(node).rpartition(".")[0]
            groups.setdefault((node.args[0], argument(node, "bias") is None, module), []).append(node)
    for nodes in groups.values():
        if len(nodes) > 1:
            _merged(rewriting, nodes)


def _may_be_merged(rewriting: Rewriting, node: Node) -> bool:
    """Whether a converter takes it, nothing else reads its constants, and it is no output."""
    x, *constants = node.args
    own = [c for c in constants if isinstance(c, Node)]
    alone = all(c.op == "placeholder" and rewriting.is_constant(c) and only_reader(c) is node for c in own)
    return alone and rank_of(x) >= 2 and not is_output(node) and rewriting.accepted(node)  # type: ignore[arg-type]


def _merged(rewriting: Rewriting, nodes: Sequence[Node]) -> None:
    x, first = nodes[0].args[0], nodes[0]

    def below(constants: list[Any]) -> Any:
        return constants[0] and rewriting.create(aten.cat.default, (constants,), {}, first)

    weights, biases = zip(*[(node.args[1], argument(node, "bias")) for node in nodes], strict=True)
    whole = rewriting.create(aten.linear.default, (x, below(list(weights)), below(list(biases))), {}, first)
    ends = list(accumulate(int(weight.meta["val"].shape[0]) for weight in weights))
    cuts = [(whole, rank_of(whole) - 1, *between) for between in pairwise([0, *ends])]
    parts = [rewriting.create(aten.slice.Tensor, cut, {}, node) for cut, node in zip(cuts, nodes, strict=True)]
    if all(map(rewriting.accepted, [whole, *parts])):
        for node, part in zip(nodes, parts, strict=True):
            rewriting.replace(node, part)
    for part in parts:
        rewriting.erase(part)


@improvement
def heads(rewriting: Rewriting) -> None:
    """Slices along the last dim, each seen as heads, become slices of the heads of one view. TensorRT-RTX 1.4 then
    brings the queries, keys and values of an attention into its order with one kernel instead of three."""
    for node in list(rewriting.graph.nodes):
        parts = list(_parts(node))
        if len(parts) > 1 and _are_heads(node, parts):
            _seen_as_heads(rewriting, node, parts)


@frozen
class Part:
    """A slice of a last dim, from ``start``, that ``view`` sees as ``heads`` of ``width`` elements."""

    view: Node
    start: int
    heads: int
    width: int


def _parts(node: Node) -> Iterator[Part]:
    """The slices of a node's last dim that are read by nothing but a view as heads."""
    for piece, start in _pieces(node):
        view = only_reader(piece)
        if view is not None and does(view.target) is Does.RESHAPES and _splits(view, piece) and not is_output(view):
            yield Part(view, start, *view.meta["val"].shape[-2:])


def _pieces(node: Node) -> Iterator[tuple[Node, int]]:
    """The slices of a node's last dim, and where they start."""
    for user in node.users:
        if user.op != "call_function" or user.args[0] is not node:
            continue
        if user.target in SPLITS and _along_the_last(user, node):
            ends = list(accumulate(piece.shape[-1] for piece in user.meta["val"]))
            yield from ((item, [0, *ends][_index(item)]) for item in user.users if is_item(item))
        elif user.target is aten.slice.Tensor and _along_the_last(user, node) and argument(user, "step") == 1:
            start = argument(user, "start") or 0
            if isinstance(start, int) and start >= 0:
                yield user, start


def _index(item: Node) -> int:
    index = item.args[1]
    assert isinstance(index, int)
    return index


def _along_the_last(user: Node, node: Node) -> bool:
    sizes = [node.meta["val"].shape[-1], *(piece.shape[-1] for piece in tree_leaves(user.meta["val"]))]
    last = argument(user, "dim") % rank_of(node) == rank_of(node) - 1
    return last and all(isinstance(size, int) for size in sizes)


def _splits(view: Node, piece: Node) -> bool:
    """Whether a view only splits the last dim in two."""
    seen, given = shape_of(view.meta["val"]), shape_of(piece.meta["val"])
    return len(seen) == len(given) + 1 and seen[:-2] == given[:-1] and all(isinstance(s, int) for s in seen[-2:])


def _are_heads(node: Node, parts: Sequence[Part]) -> bool:
    """Whether all heads are of one width, and begin where a head of the whole does."""
    width = parts[0].width
    starts = [node.meta["val"].shape[-1], *(part.start for part in parts)]
    return width > 0 and all(part.width == width for part in parts) and all(start % width == 0 for start in starts)


def _seen_as_heads(rewriting: Rewriting, node: Node, parts: Sequence[Part]) -> None:
    first, width = min(part.view for part in parts), parts[0].width
    sizes = [node.meta["val"].shape[-1] // width, width]
    whole = rewriting.create(aten.unflatten.int, (node, rank_of(node) - 1, sizes), {}, first)
    for part in parts if rewriting.accepted(whole) else ():
        start = part.start // width
        rewriting.offer(part.view, aten.slice.Tensor, (whole, rank_of(whole) - 2, start, start + part.heads))
    rewriting.erase(whole)
