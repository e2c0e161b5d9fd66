"""Convert matmuls and linear layers, and decompose einsum and grouped matmuls to matmuls.

A grouped matmul (mixture of experts) multiplies each group of rows by its own matrix. An einsum of two tensors becomes
a matmul with as few dims as possible:
torch's own decomposition creates tensors with a dim for every letter, which TensorRT-RTX 1.4 may fail to build in
float16 (CvT), and in which it recognises no attention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from pipeline.aten.arguments import bind
from pipeline.aten.traits import Kind, op_kind
from pipeline.converters.binding import aten, converts
from pipeline.converters.decompositions import register_torch_trt_decomposition
from pipeline.impl import base
from pipeline.impl import matmul as impl
from pipeline.impl.attention import duplicate_single_query, keep_first_row
from pipeline.impl.base import ITensor, Net, Value
from pipeline.quirks import matmul_neighbours
from pipeline.quirks.matmul_neighbours import PASSING


@converts(aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default, aten.matmul.default)
def matmul(net: Net, *factors: Value) -> ITensor:
    """matmul(Tensor self, Tensor other) -> Tensor"""
    a, b = _separate_transposed_operands(net, factors)
    lone = _reads_attention_weights(net.node)
    if lone:
        a, lone = duplicate_single_query(net, base.tensor(net, a))
    result = impl.matmul(net, a, b)
    result = impl.separate_transpose(net, result, matmul_neighbours.RESULT)
    return keep_first_row(net, result) if lone else result


def _separate_transposed_operands(net: Net, factors: Sequence[Value], first_position: int = 0) -> list[Value]:
    """Return a matmul's operands, with a barrier against fusion after each transposed one. ``first_position``: the
    index of the first operand among the node's arguments."""
    node = net.node
    if node is None or op_kind(node.target) is not Kind.MULTIPLIES:
        return [*factors]
    rows = zip(factors, bind(node.target, node.args, node.kwargs)[first_position:], strict=False)
    return [impl.separate_transpose(net, x, given.name) if isinstance(given, torch.fx.Node) else x for x, given in rows]


def _reads_attention_weights(product: torch.fx.Node | None) -> bool:
    """Return whether a matmul's first operand is the result of a softmax, as in the second matmul of an attention."""
    node: object = product.args[0] if product is not None and product.args else None
    while isinstance(node, torch.fx.Node) and op_kind(node.target) in PASSING:
        node = node.args[0]
    return isinstance(node, torch.fx.Node) and op_kind(node.target) is Kind.SOFTENS


@converts(aten.addmm.default, aten.baddbmm.default, aten.addmv.default)
def addmm(net: Net, *operands: Value) -> ITensor:
    """addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    summand, a, b, *coefficients = operands
    return impl.add_matmul(net, summand, *_separate_transposed_operands(net, (a, b), 1), *coefficients)


@converts(aten.linear.default)
def linear(net: Net, input: Value, weight: Value, bias: Value | None) -> ITensor:
    """linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"""
    return impl.linear(net, input, weight, bias)


Letters: TypeAlias = tuple[str, ...]


@register_torch_trt_decomposition(aten.einsum.default)
def einsum(equation: str, tensors: Sequence[Tensor], *, path: Any = None) -> Any:
    """einsum(str equation, Tensor[] tensors, *, int[]? path=None) -> Tensor

    Decompose to a matmul if there are two tensors, no repeated letter and no broadcast dim; else leave it to torch.
    """
    read = _parse_equation(equation, [tensor.dim() for tensor in tensors])
    if read is None:
        return NotImplemented
    (left, right), out = read
    a, b = tensors
    sizes: dict[str, Any] = {}
    for letter, size in (*zip(left, a.shape, strict=True), *zip(right, b.shape, strict=True)):
        known = sizes.setdefault(letter, size)
        if isinstance(known, int) != isinstance(size, int) or (isinstance(size, int) and known != size):
            return NotImplemented
    a, left = _sum_over_unneeded_dims(a, left, {*right, *out})
    b, right = _sum_over_unneeded_dims(b, right, {*left, *out})
    batch = tuple(x for x in out if x in left and x in right)
    inner = tuple(x for x in left if x in right and x not in out)
    rows = tuple(x for x in out if x in left and x not in right)
    columns = tuple(x for x in out if x in right and x not in left)
    a = _as_matrices(a, left, batch, rows, inner, sizes)
    b = _as_matrices(b, right, batch, inner, columns, sizes)
    product = torch.matmul(a, b) if inner else a * b
    product = product.reshape([sizes[x] for x in (*batch, *rows, *columns)])
    return _permute_by_letters(product, (*batch, *rows, *columns), out)


def _parse_equation(equation: str, ranks: Sequence[int]) -> tuple[tuple[Letters, Letters], Letters] | None:
    """Parse an einsum equation to the dim letters of both operands and of the result; None if it is unsupported."""
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    operands = inputs.split(",")
    if len(operands) != 2 or len(ranks) != 2:
        return None
    spread = [_expand_ellipsis(operand, rank) for operand, rank in zip(operands, ranks, strict=True)]
    if any(len({*letters}) != len(letters) for letters in spread):
        return None
    more = max(spread, key=lambda letters: sum(x.startswith(".") for x in letters))
    dots = tuple(x for x in more if x.startswith("."))
    if arrow:
        head, found, tail = result.partition("...")
        out = (*head, *(dots if found else ()), *tail)
    else:
        once = [x for x in {*spread[0]} ^ {*spread[1]} if not x.startswith(".")]
        out = (*dots, *sorted(once))
    return (spread[0], spread[1]), out


def _expand_ellipsis(operand: str, rank: int) -> Letters:
    """Return an operand's dim letters, with ``...`` replaced by names of its dims, counted from the last."""
    head, found, tail = operand.partition("...")
    count = rank - len(head) - len(tail) if found else 0
    return (*head, *(f".{i}" for i in range(count, 0, -1)), *tail)


def _sum_over_unneeded_dims(x: Tensor, letters: Letters, needed_letters: set[str]) -> tuple[Tensor, Letters]:
    """Sum a tensor over the dims that are not in ``needed_letters``; return the sum and its remaining letters."""
    gone = [i for i, letter in enumerate(letters) if letter not in needed_letters]
    kept = tuple(letter for letter in letters if letter in needed_letters)
    return (x.sum(gone) if gone else x), kept


def _as_matrices(
    x: Tensor, letters: Letters, batch: Letters, rows: Letters, columns: Letters, sizes: dict[str, Any]
) -> Tensor:
    """Permute and reshape a tensor to [*batch, rows, columns]: rows and columns are flattened dims, or of size 1."""
    x = _permute_by_letters(x, letters, (*batch, *rows, *columns))
    if len(rows) == len(columns) == 1:
        return x
    flat = (math.prod(sizes[letter] for letter in group) for group in (rows, columns))
    return x.reshape([*(sizes[letter] for letter in batch), *flat])


def _permute_by_letters(x: Tensor, letters: Letters, order: Letters) -> Tensor:
    """Permute a tensor whose dims have these letters, as in an einsum equation, to another order of the letters."""
    return x if letters == order else x.permute([letters.index(letter) for letter in order])


SAME: Final[Mapping[str, Any]] = {"transformers::grouped_mm_fallback": aten._grouped_mm.default}
"""Operators of other libraries, by name, with the ATen operator that computes the same."""


FEW_ROWS: Final = 256
"""If a grouped matmul has at most so many rows, reading its matrices takes longer than multiplying all rows by all."""

MOST: Final = 1 << 36
"""If a grouped matmul multiplies at most so many numbers, an engine computes it faster than leaving it (0.2 ms)."""


def is_grouped_mm_faster_in_torch(row_counts: Sequence[int], matrices_shape: Sequence[int]) -> bool:
    """Return whether a grouped matmul is faster in PyTorch than in an engine, for all these numbers of input rows."""
    return min(row_counts) > FEW_ROWS and min(row_counts) * math.prod(matrices_shape) > MOST


def equivalent_operator(target: Any) -> Any:
    """Return the ATen operator that computes the same as another library's operator; any other target unchanged."""
    return SAME.get(target.name(), target) if isinstance(target, torch._ops.OpOverload) else target


@register_torch_trt_decomposition(aten._grouped_mm.default)
def grouped_mm(
    self: Tensor, mat2: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None
) -> Any:
    """_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor

    Multiply rows ``offs[e - 1]`` to ``offs[e]`` of ``self`` by ``mat2[e]``; rows after the last group are 0. Shapes in
    an engine must not depend on data, so every row is multiplied by every matrix, at the cost of one matmul per group.
    If there are fewer rows than matrices, each row is multiplied by a copy of its matrix instead.
    `is_grouped_mm_faster_in_torch` decides which calls run in PyTorch.
    """
    if bias is not None or self.dim() != 2 or mat2.dim() != 3 or offs is None:
        return NotImplemented
    groups = torch.arange(mat2.shape[0], device=self.device)
    rows = torch.arange(self.shape[0], device=self.device)
    of_row = (rows[:, None] >= offs[None, :]).sum(1)
    chosen = of_row[:, None] == groups[None, :]
    if isinstance(self.shape[0], int) and self.shape[0] < mat2.shape[0]:  # each row by a copy of its matrix
        last = mat2.shape[0] - 1
        own = mat2.index_select(0, of_row.clamp(max=last))
        result = torch.where((of_row <= last)[:, None], torch.bmm(self[:, None], own)[:, 0], 0.0)
    else:  # one matmul: each row, padded with zeros to its group's position, by all matrices stacked
        spread = torch.where(chosen[:, :, None], self[:, None], 0.0)
        result = torch.mm(spread.flatten(1), mat2.flatten(0, 1))
    return result if out_dtype is None else result.to(out_dtype)
