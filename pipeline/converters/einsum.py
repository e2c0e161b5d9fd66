"""Decompose einsum of two tensors to a matmul with as few dims as the equation allows.

torch's own decomposition creates tensors with a dim for every letter of the equation; TensorRT-RTX 1.4 fails to build
some of those in float16 (CvT), and does not recognise attention in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeAlias

import torch

from pipeline.converters.decompositions import register_torch_trt_decomposition

aten = torch.ops.aten
Tensor = torch.Tensor
Letters: TypeAlias = tuple[str, ...]


@register_torch_trt_decomposition(aten.einsum.default)
def einsum(equation: str, tensors: Sequence[Tensor], *, path: Any = None) -> Any:
    """einsum(str equation, Tensor[] tensors, *, int[]? path=None) -> Tensor

    torch decomposes equations of one tensor or of more than two, with a letter twice in one operand, or with a size of
    1 that broadcasts.
    """
    read = _parse(equation, [tensor.dim() for tensor in tensors])
    if read is None:
        return NotImplemented
    (left, right), out = read
    a, b = tensors
    sizes: dict[str, Any] = {}
    for letter, size in (*zip(left, a.shape, strict=True), *zip(right, b.shape, strict=True)):
        known = sizes.setdefault(letter, size)
        if isinstance(known, int) != isinstance(size, int) or (isinstance(size, int) and known != size):
            return NotImplemented
    a, left = _summed(a, left, {*right, *out})
    b, right = _summed(b, right, {*left, *out})
    batch = tuple(x for x in out if x in left and x in right)
    inner = tuple(x for x in left if x in right and x not in out)
    rows = tuple(x for x in out if x in left and x not in right)
    columns = tuple(x for x in out if x in right and x not in left)
    shape = [sizes[x] for x in batch]
    a = _matrices(a, left, batch, rows, inner, shape, sizes)
    b = _matrices(b, right, batch, inner, columns, shape, sizes)
    product = torch.matmul(a, b) if inner else a * b
    product = product.reshape([*shape, *(sizes[x] for x in (*rows, *columns))])
    return _ordered(product, (*batch, *rows, *columns), out)


def _parse(equation: str, ranks: Sequence[int]) -> tuple[tuple[Letters, Letters], Letters] | None:
    """Return the letters of both operands and of the result; each dim of ``...`` has a unique name."""
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
    """Return an operand's letters with ``...`` replaced by the names of its dims, counted from the last."""
    head, found, tail = operand.partition("...")
    count = rank - len(head) - len(tail) if found else 0
    return (*head, *(f".{i}" for i in range(count, 0, -1)), *tail)


def _summed(x: Tensor, letters: Letters, needed: set[str]) -> tuple[Tensor, Letters]:
    """Sum over the dims that neither the other operand nor the result has."""
    gone = [i for i, letter in enumerate(letters) if letter not in needed]
    kept = tuple(letter for letter in letters if letter in needed)
    return (x.sum(gone) if gone else x), kept


def _matrices(
    x: Tensor,
    letters: Letters,
    batch: Letters,
    rows: Letters,
    columns: Letters,
    shape: list[Any],
    sizes: dict[str, Any],
) -> Tensor:
    """Return a tensor as [*batch, rows, columns]; rows and columns are flattened to one dim each, of size 1 if there
    are none."""
    x = _ordered(x, letters, (*batch, *rows, *columns))
    if len(rows) == len(columns) == 1:
        return x
    return x.reshape([*shape, *(prod(sizes[letter] for letter in group) for group in (rows, columns))])


def _ordered(x: Tensor, letters: Letters, wanted: Letters) -> Tensor:
    return x if letters == wanted else x.permute([letters.index(letter) for letter in wanted])
