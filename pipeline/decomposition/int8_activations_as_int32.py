"""Compute quantized activations in int32 between rounding and matmul: TensorRT-RTX has INT8 only in weights and pairs.

Values clamped to INT8's range are the same in int32. Operators that only move them run in int32, too.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import torch

from pipeline.aten.traits import Does, does
from pipeline.aten.types import Argument

aten = torch.ops.aten
Node: TypeAlias = Argument
"""A node, or an argument that may be one."""

MOVES: Final = (Does.COPIES, Does.RESHAPES, Does.SQUEEZES, Does.TRANSPOSES)


def widen_codes(layout: Argument) -> None:
    """Cast clamped numbers to int32 instead of int8, if all readers move them or cast them further."""
    for node in list(layout.graph.nodes):
        if _rounds(layout, node) and _only_moved(node):
            _widen(layout, node, layout.call(node, aten._to_copy.default, (node.args[0],), dtype=torch.int32))


def _rounds(layout: Argument, node: Node) -> bool:
    """Return whether a node casts numbers to int8 that a clamp limits to its range."""
    if not is_cast_to_codes(node) or layout.constant.get(node, True):
        return False
    source = node.args[0]
    if source.target is not aten.clamp.default or len(source.args) != 3:
        return False
    _, low, high = source.args
    return all(isinstance(bound, int | float) for bound in (low, high)) and -128 <= low <= high <= 127


def is_cast_to_codes(node: Node) -> bool:
    """Return whether a node casts to int8."""
    return node.op == "call_function" and does(node.target) is Does.CASTS and node.meta["val"].dtype == torch.int8


def _only_moved(node: Node) -> bool:
    """Return whether every reader casts the node to another dtype, directly or after moving it."""
    return all(_is_cast(reader) for reader in readers(node))


def readers(node: Node) -> list[Node]:
    """Return the readers of a node, directly or behind operators that only move it."""
    found, moved = list[Node](), [node]
    while moved:
        for user in moved.pop().users:
            (moved if does(user.target) in MOVES else found).append(user)
    return found


def _is_cast(node: Node) -> bool:
    return does(node.target) is Does.CASTS and node.meta["val"].dtype != torch.int8


def _widen(layout: Argument, node: Node, wide: Node) -> None:
    """Replace a node by its wide version in all readers, and likewise the nodes that move it."""
    waiting, narrow = [(node, wide)], list[Node]()
    while waiting:
        old, new = waiting.pop()
        narrow.append(old)
        for user in list(old.users):
            if _is_cast(user):
                user.replace_input_with(old, new)
            else:
                args = tuple(new if arg is old else arg for arg in user.args)
                waiting.append((user, layout.call(user, user.target, args, **user.kwargs)))
    for old in reversed(narrow):
        layout.graph.erase_node(old)
