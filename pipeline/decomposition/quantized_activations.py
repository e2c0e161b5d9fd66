"""Rewrite quantized activations: TensorRT-RTX supports FP8 and INT8 only for weights and quantize/dequantize pairs.

A cast to E4M3 becomes a floating-point quantize/dequantize pair of scale 1, if its readers cast the value back,
directly or after moving elements; these readers then read the pair. A cast with any other reader, such as a model
output, stays. A cast of clamped values to INT8 becomes a cast to int32, which holds the same values. Operators that
only move such values run in int32, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Final, TypeAlias

import torch

from pipeline.aten.naming import origin_of
from pipeline.aten.quantized import operators
from pipeline.aten.traits import Kind, op_kind
from pipeline.aten.types import Argument, aten
from pipeline.capture.fake_tensors import fake_mode, fake_result
from pipeline.decomposition.fold import is_constant
from pipeline.program import Program

Node: TypeAlias = Argument
"""A node of a graph, or an argument that may be a node."""

E4M3: Final = torch.float8_e4m3fn
FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)
LARGEST_ROUNDED: Final = 464
"""The largest number that E4M3 rounds to its maximum, 448."""
SATURATES: Final = bool(torch.full((), 2.0 * LARGEST_ROUNDED).to(E4M3).float() == 448)
"""Whether torch's cast to E4M3 saturates, as from torch 2.13 on; older versions return NaN for larger numbers."""
MOVES: Final = (Kind.COPIES, Kind.RESHAPES, Kind.SQUEEZES, Kind.TRANSPOSES)
DEQUANTIZE: Final = operators.dequantize.default


class GraphEdit:
    """A program's graph that is changed in place, and whether each of its nodes is constant."""

    def __init__(self, program: Program) -> None:
        self.program, self.graph, self.mode = program, program.graph, fake_mode(program.graph)
        self.constant: dict[Node, bool] = {}
        for node in self.graph.nodes:
            self.constant[node] = is_constant(node, self.constant, program)

    def is_weight(self, node: Node) -> bool:
        """Return whether a node is a weight: an operator that dequantizes a constant."""
        return node.target is DEQUANTIZE and self.constant.get(node.args[0], False)

    def insert(self, before: Node, target: Argument, args: tuple[Argument, ...], **kwargs: Argument) -> Node:
        """Insert an operator call, with its fake value, before a node."""
        with self.graph.inserting_before(before):
            node = self.graph.call_function(target, args, kwargs)
        node.meta = {**origin_of(before.meta), "val": fake_result(self.mode, target, args, kwargs)}
        self.constant[node] = is_constant(node, self.constant, self.program)
        return node

    def insert_dequantized_weight(self, before: Node, *arguments: Argument) -> Node:
        """Insert a call of the operator ``dequantize`` before a node, and return it. ``arguments``: the quantized
        values, the scales, the type (``"int8"``), the block shape and the dtype of the result."""
        return self.insert(before, DEQUANTIZE, arguments)

    def insert_cast(self, before: Node, x: Node, dtype: torch.dtype) -> Node:
        """Return a node cast to a dtype; the node itself if it has that dtype already."""
        return x if x.meta["val"].dtype == dtype else self.insert(before, aten._to_copy.default, (x,), dtype=dtype)

    def replace(self, old: Node, new: Node) -> None:
        """Replace a node by another in all its readers, and erase the node."""
        old.replace_all_uses_with(new)
        self.graph.erase_node(old)

    def erase_unread_nodes(self) -> None:
        """Erase unread nodes, which would count as readers of their inputs; no node has side effects."""
        for node in reversed(list(self.graph.nodes)):
            if not node.users and node.op == "call_function":
                self.graph.erase_node(node)

    def propagate_replacement(
        self, node: Node, replacement: Node, is_end: Callable[[Node], bool]
    ) -> Iterator[tuple[Node, Node, Node]]:
        """Yield ``(end, old, new)`` for each node ``end`` for which ``is_end`` holds, and that reads ``node``, directly
        or through operators that only move elements, such as reshapes. ``old`` is the value that ``end`` reads, and
        ``new`` the same value computed from ``replacement``: the operators in between are repeated."""
        waiting = [(node, replacement)]
        while waiting:
            old, replacement = waiting.pop()
            for user in list(old.users):
                if is_end(user):
                    yield user, old, replacement
                elif any(map(is_end, final_readers(user))):
                    args = tuple(replacement if arg is old else arg for arg in user.args)
                    waiting.append((user, self.insert(user, user.target, args, **user.kwargs)))


def replace_float8_casts_by_pairs(program: Program) -> Program:
    """Replace a program's casts to E4M3 and back by quantize/dequantize pairs, in place; return the program."""
    edit = GraphEdit(program)
    for node in list(program.graph.nodes):
        if is_cast_to(E4M3, node) and not edit.constant[node] and node.args[0].meta["val"].dtype in FLOATS:
            wanted = [reader.meta["val"].dtype for reader in final_readers(node) if _casts_to_float(reader)]
            if wanted:
                _replace_cast_by_pair(edit, node, wanted)
    return program


def _replace_cast_by_pair(edit: GraphEdit, cast: Node, reader_dtypes: list[torch.dtype]) -> None:
    """Let the nodes that cast the result of ``cast`` (to E4M3) back to floats read a quantize/dequantize pair instead.
    ``reader_dtypes``: the dtypes to which they cast."""
    x = cast.args[0]
    wide = edit.insert_cast(cast, x, reduce(torch.promote_types, reader_dtypes, x.meta["val"].dtype))
    one = edit.insert(cast, aten.ones.default, ([],), dtype=torch.float32, device=x.meta["val"].device)
    made = edit.insert(cast, operators.fake_quantize.default, (wide, one, "fp8", [-1] * x.meta["val"].dim()))
    if not SATURATES and not _is_clamped(x, -LARGEST_ROUNDED, LARGEST_ROUNDED):
        size = edit.insert(cast, aten.abs.default, (wide,))
        beyond = edit.insert(cast, aten.gt.Scalar, (size, LARGEST_ROUNDED))
        made = edit.insert(cast, aten.where.ScalarSelf, (beyond, torch.nan, made))
    for user, _, new in edit.propagate_replacement(cast, made, _casts_to_float):
        edit.replace(user, edit.insert_cast(user, new, user.meta["val"].dtype))


def _casts_to_float(node: Node) -> bool:
    return op_kind(node.target) is Kind.CASTS and node.meta["val"].dtype in FLOATS


def _is_clamped(x: Node, least: int, most: int) -> bool:
    """Return whether ``x`` is the result of a clamp to numbers within this range."""
    if x.target is not aten.clamp.default or len(x.args) != 3:
        return False
    _, low, high = x.args
    return all(isinstance(bound, int | float) for bound in (low, high)) and least <= low <= high <= most


def cast_int8_to_int32(edit: GraphEdit) -> None:
    """Cast clamped values to int32 instead of int8 if nothing reads them as int8: all readers, directly or after
    operators that only move elements, cast them to other dtypes."""
    for node in list(edit.graph.nodes):
        varies = is_cast_to(torch.int8, node) and not edit.constant.get(node, True)
        if varies and _is_clamped(node.args[0], -128, 127) and all(map(_casts_to_other_than_int8, final_readers(node))):
            wide = edit.insert(node, aten._to_copy.default, (node.args[0],), dtype=torch.int32)
            for user, old, new in edit.propagate_replacement(node, wide, _casts_to_other_than_int8):
                user.replace_input_with(old, new)
            edit.erase_unread_nodes()


def is_cast_to(dtype: torch.dtype, node: Node) -> bool:
    """Return whether a node casts to a dtype."""
    return node.op == "call_function" and op_kind(node.target) is Kind.CASTS and node.meta["val"].dtype == dtype


def _casts_to_other_than_int8(node: Node) -> bool:
    """Return whether a node casts its input to any dtype except int8."""
    return op_kind(node.target) is Kind.CASTS and node.meta["val"].dtype != torch.int8


def final_readers(node: Node) -> list[Node]:
    """Return the nodes that read a node, directly or after operators that only move its elements."""
    found, moved = list[Node](), [node]
    while moved:
        for user in moved.pop().users:
            (moved if op_kind(user.target) in MOVES else found).append(user)
    return found
