"""Rewrite quantized activations: TensorRT-RTX has FP8 and INT8 only for weights and quantize/dequantize pairs.

A cast to E4M3 becomes a pair of scale 1, in floats, if its readers cast it back, directly or after moving elements:
these read the pair. A cast with any other reader, such as an output of the model, stays. Between rounding and matmul
INT8 is computed in int32: values clamped to INT8's range are the same there. Operators that only move them run in
int32, too.
"""

from __future__ import annotations

from functools import reduce
from typing import Final, TypeAlias

import torch

from pipeline.aten.naming import origin
from pipeline.aten.quantized import operators
from pipeline.aten.traits import Does, does
from pipeline.aten.types import Argument, aten
from pipeline.capture.fake_tensors import fake_mode, fake_result
from pipeline.decomposition.fold import is_constant
from pipeline.program import Program

Node: TypeAlias = Argument
"""A node, or an argument that may be one."""

E4M3: Final = torch.float8_e4m3fn
FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)
LAST: Final = 464
"""The largest number that rounds to E4M3's greatest, 448."""
SATURATES: Final = bool(torch.full((), 2.0 * LAST).to(E4M3).float() == 448)
"""True if torch's cast to E4M3 saturates, as from 2.13 on; before, it returned NaN for larger numbers."""


def paired_casts(program: Program) -> Program:
    """Return the program with its casts to E4M3 as pairs. Its graph is changed in place, so it must be the caller's own
    copy."""
    casts = _Casts(program)
    for node in list(program.graph.nodes):
        if casts.is_cast(node) and _is_read(node):
            casts.pair(node)
    return program


class _Casts:
    """The rewriting of one graph."""

    def __init__(self, program: Program) -> None:
        self.graph, self.mode = program.graph, fake_mode(program.graph)
        self.constant: dict[Node, bool] = {}
        for node in self.graph.nodes:
            self.constant[node] = is_constant(node, self.constant, program)

    def is_cast(self, node: Node) -> bool:
        """Return whether a node casts an activation to E4M3."""
        if node.op != "call_function" or does(node.target) is not Does.CASTS or self.constant[node]:
            return False
        return node.meta["val"].dtype == E4M3 and node.args[0].meta["val"].dtype in FLOATS

    def pair(self, node: Node) -> None:
        """Replace a cast by a pair in all its readers."""
        x = node.args[0]
        wide = self.cast(node, x, reduce(torch.promote_types, _read_as(node), x.meta["val"].dtype))
        args = (wide, self.call(node, aten.ones.default, ([],), dtype=torch.float32, device=x.meta["val"].device))
        made = self.call(node, operators.fake_quantize.default, (*args, "fp8", [-1] * x.meta["val"].dim()))
        if not SATURATES and not _is_within(x):
            size = self.call(node, aten.abs.default, (wide,))
            beyond = self.call(node, aten.gt.Scalar, (size, LAST))
            made = self.call(node, aten.where.ScalarSelf, (beyond, torch.nan, made))
        self.follow(node, made)

    def follow(self, node: Node, numbers: Node) -> None:
        """Replace quantized values by floats in the nodes that cast them back or move them."""
        waiting = [(node, numbers)]
        while waiting:
            old, new = waiting.pop()
            for user in list(old.users):
                if _casts_back(user):
                    user.replace_all_uses_with(self.cast(user, new, user.meta["val"].dtype))
                    self.graph.erase_node(user)
                elif _is_read(user):
                    args = tuple(new if arg is old else arg for arg in user.args)
                    waiting.append((user, self.call(user, user.target, args, **user.kwargs)))

    def cast(self, before: Node, x: Node, dtype: torch.dtype) -> Node:
        """Return a node in a dtype; itself if it has that dtype already."""
        return x if x.meta["val"].dtype == dtype else self.call(before, aten._to_copy.default, (x,), dtype=dtype)

    def call(self, before: Node, target: Argument, args: tuple[Argument, ...], **kwargs: Argument) -> Node:
        """Add a call with its fake value."""
        with self.graph.inserting_before(before):
            node = self.graph.call_function(target, args, kwargs)
        node.meta = {**origin(before.meta), "val": fake_result(self.mode, target, args, kwargs)}
        return node


def _casts_back(node: Node) -> bool:
    return does(node.target) is Does.CASTS and node.meta["val"].dtype in FLOATS


def _read_as(node: Node) -> list[torch.dtype]:
    """Return the dtypes to which readers cast quantized values back, directly or after moving them."""
    return [reader.meta["val"].dtype for reader in readers(node) if _casts_back(reader)]


def _is_read(node: Node) -> bool:
    """Return whether every reader casts quantized values back, directly or after moving them."""
    return any(map(_casts_back, readers(node)))


def _is_within(x: Node) -> bool:
    """Return whether a clamp limits ``x`` to the range in which a cast to E4M3 returns no NaN."""
    if x.target is not aten.clamp.default or len(x.args) != 3:
        return False
    _, low, high = x.args
    return all(isinstance(bound, int | float) for bound in (low, high)) and -LAST <= low <= high <= LAST


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
