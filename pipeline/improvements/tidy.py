"""Passes that leave less to do: equal nodes are made one, casts and changes of layout that undo each other vanish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.converters.arguments import argument
from pipeline.improvements.rewriting import (
    Node,
    Rewriting,
    aten,
    dtype_of,
    improvement,
    is_item,
    rank_of,
    source_of,
)
from pipeline.stages.fold import is_pure


@improvement
def duplicates(rewriting: Rewriting) -> None:
    """Of calls with equal arguments the first is kept. Random numbers are drawn as often as before."""
    seen: dict[str, Node] = {}
    for node in list(rewriting.graph.nodes):
        if node.op == "call_function" and (is_item(node) or is_pure(node.target)):
            first = seen.setdefault(_key(node), node)
            if first is not node:
                rewriting.replace(node, first)


def _key(node: Node) -> str:
    """Equal for equal calls only: ``1``, ``1.0`` and ``True`` differ."""
    return f"{node.target} {_printed(node.args)} {_printed(dict(sorted(node.kwargs.items())))}"


def _printed(value: Any) -> str:
    if isinstance(value, Node):
        return f"%{value.name}"
    if isinstance(value, (tuple, list)):
        return f"({' '.join(map(_printed, value))})"
    if isinstance(value, dict):
        return f"({' '.join(f'{k}={_printed(v)}' for k, v in value.items())})"
    return f"{type(value).__name__}:{value!r}"


WIDENS: Mapping[torch.dtype | None, set[torch.dtype]] = {
    torch.float16: {torch.float32},
    torch.bfloat16: {torch.float32},
    torch.uint8: {torch.int32, torch.int64, torch.float32},
    torch.int32: {torch.int64},
    torch.bool: {torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64},
}
"""Casts that lose nothing, so that the way back is the identity."""

COPIES = (aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default)


@improvement
def casts(rewriting: Rewriting) -> None:
    """A cast to the dtype that is there, a cast there and back, copies and slices of everything vanish; of two casts
    the second is kept."""
    for node in rewriting.nodes(aten.slice.Tensor):
        if argument(node, "step") == 1:
            rewriting.replace(node, source_of(node))
    for node in rewriting.nodes(aten._to_copy.default, *COPIES):
        source = node.args[0]
        if not isinstance(source, Node) or rewriting.replace(node, source):
            continue
        inner = source.args[0] if source.target is aten._to_copy.default else None
        if not isinstance(inner, Node) or dtype_of(source) not in WIDENS.get(dtype_of(inner), ()):
            continue
        if not rewriting.replace(node, inner) and node.target is aten._to_copy.default:
            rewriting.offer(node, aten._to_copy.default, (inner,), {"dtype": dtype_of(node)})


TRANSPOSES = (aten.permute.default, aten.transpose.int, aten.t.default, aten.mT.default)
RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.flatten.using_ints)


@improvement
def layouts(rewriting: Rewriting) -> None:
    """Permutations that follow each other become one, or none; of reshapes the last is kept; expanding to the size that
    is there vanishes."""
    for node in rewriting.nodes(*TRANSPOSES, *RESHAPES, aten.expand.default):
        source = node.args[0]
        if not isinstance(source, Node):
            continue
        if node.target in TRANSPOSES:
            _permuted(rewriting, node, source)
        elif not rewriting.replace(node, source) and node.target in RESHAPES and source.target in RESHAPES:
            inner = source_of(source)
            sizes = _sizes(node)
            if not rewriting.replace(node, inner) and sizes is not None:
                rewriting.offer(node, aten.reshape.default, (inner, sizes))


def _sizes(node: Node) -> Any:
    """The sizes that a reshape asks for; None where a flattening has more of them to be known when it runs than one."""
    if node.target is not aten.flatten.using_ints:
        return node.args[1]
    sizes = [size if isinstance(size, int) else -1 for size in node.meta["val"].shape]
    return sizes if sizes.count(-1) <= 1 else None


def _permuted(rewriting: Rewriting, node: Node, source: Node) -> None:
    order = permutation(node)
    if order == sorted(order):
        rewriting.replace(node, source)
    elif source.target in TRANSPOSES and isinstance(inner := source.args[0], Node):
        before = permutation(source)
        both = [before[dim] for dim in order]
        if both != sorted(both) or not rewriting.replace(node, inner):
            rewriting.offer(node, aten.permute.default, (inner, both))


def permutation(node: Node) -> list[int]:
    """The dims of a transposing node's input in the order of its result."""
    rank = rank_of(node)
    order = list(range(rank))
    if node.target is aten.permute.default:
        dims: Sequence[int] = argument(node, "dims")
        return [dim % rank for dim in dims]
    first, second = (-2, -1)
    if node.target is aten.transpose.int:
        first, second = argument(node, "dim0"), argument(node, "dim1")
    if rank >= 2:
        order[first], order[second] = order[second], order[first]
    return order
