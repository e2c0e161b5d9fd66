"""Decompose inverses, determinants and solutions of linear systems into elementwise operators, for small matrices.

TensorRT has no layers for these operators. Only matrices of at most `LARGEST` rows (as for cameras, poses and filters)
are decomposed. The inverse of a singular matrix, for which eager raises an error, is not finite.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipeline.aten.types import aten
from pipeline.converters.decompositions import register_torch_trt_decomposition

LARGEST: Final = 8
"""The maximum number of rows of a matrix for which this module decomposes an operator."""


def _is_too_large_to_decompose(matrix: Tensor) -> bool:
    """Return whether the number of rows is symbolic, 0 or above `LARGEST`: the operator then runs in PyTorch."""
    return not isinstance(matrix.shape[-1], int) or not 0 < matrix.shape[-1] <= LARGEST


def _pivot_row_mask(column: Tensor, is_unused: Tensor) -> Tensor:
    """Return a mask [..., n, 1] of the pivot row: the first unused row of largest magnitude; NaN counts as infinite."""
    size = torch.where(is_unused, torch.where(column.isnan(), torch.inf, column.abs()), -1.0)
    others = size.transpose(-2, -1)
    is_first = torch.ones(column.shape[-2], column.shape[-2], dtype=torch.bool, device=column.device).triu()
    return ((size > others) | ((size == others) & is_first)).all(-1, keepdim=True)


def _eliminate_by_gauss_jordan(a: Tensor, b: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Run Gauss-Jordan elimination with partial pivoting, without swapping rows.

    Return the pivots [..., n]; their rows as a mask [..., pivot, row, 1]; and x with ``a @ x == b`` (None without b).
    """
    rest = a if b is None else torch.cat([a, b], -1)
    free = torch.ones_like(a[..., :1], dtype=torch.bool)
    pivots, rows = [], []
    for _ in range(a.shape[-1]):
        column = rest[..., :1]
        here = _pivot_row_mask(column, free)
        row = torch.where(here, rest, 0.0).sum(-2, keepdim=True)
        pivot = row[..., :1]
        row = row[..., 1:] / (pivot if b is not None else torch.where(pivot == 0, 1.0, pivot))
        rest = torch.where(here, row, rest[..., 1:] - column * row)
        free = free & ~here
        pivots.append(pivot[..., 0, 0])
        rows.append(here)
    order = torch.stack(rows, -3)
    solution = None if b is None else torch.where(order, rest.unsqueeze(-3), 0.0).sum(-2)
    return torch.stack(pivots, -1), order, solution


def _permutation_sign(row_masks: Tensor) -> Tensor:
    """Return the sign (1 or -1) of the permutation of rows that masks, one for each pivot's row, describe."""
    at = torch.arange(row_masks.shape[-2], device=row_masks.device, dtype=torch.float32)
    place = torch.where(row_masks[..., 0], at, 0.0).sum(-1)
    swapped = (place.unsqueeze(-1) > place.unsqueeze(-2)) & (at.unsqueeze(-1) < at)
    return 1 - 2 * swapped.to(torch.int32).sum((-2, -1), dtype=torch.int32).remainder(2)


def _first_failed_step(has_failed: Tensor) -> Tensor:
    """Return the position, from 1, of the first True in the last dim (an entry per elimination step); 0 if none."""
    steps = torch.arange(1, has_failed.shape[-1] + 1, device=has_failed.device)
    first = torch.where(has_failed, steps, has_failed.shape[-1] + 1).amin(-1)
    return torch.where(first > has_failed.shape[-1], 0, first).to(torch.int32)


@register_torch_trt_decomposition(aten.linalg_inv_ex.default)
def inv_ex(A: Tensor, *, check_errors: bool = False) -> object:  # noqa: N803 - the operator's own name
    if _is_too_large_to_decompose(A):
        return NotImplemented
    one = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    pivots, _, inverse = _eliminate_by_gauss_jordan(A, one.expand(A.shape))
    return inverse, _first_failed_step(pivots == 0)


@register_torch_trt_decomposition(aten._linalg_solve_ex.default)
def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> object:  # noqa: N803
    if _is_too_large_to_decompose(A):
        return NotImplemented
    is_vector = B.dim() == 1 or (B.dim() == A.dim() - 1 and B.shape == A.shape[:-1])
    b = B.unsqueeze(-1) if is_vector else B
    a, b = (A, b) if left else (A.mT, b.mT)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    pivots, _, x = _eliminate_by_gauss_jordan(a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:]))
    assert x is not None
    x = x if left else x.mT
    return x.squeeze(-1) if is_vector else x, None, None, _first_failed_step(pivots == 0)


@register_torch_trt_decomposition(aten._linalg_det.default)
def det(A: Tensor) -> object:  # noqa: N803
    """Return the determinants of matrices, and None for the LU factors and pivots, which only gradients need."""
    if _is_too_large_to_decompose(A):
        return NotImplemented
    pivots, order, _ = _eliminate_by_gauss_jordan(A)
    return pivots.prod(-1) * _permutation_sign(order), None, None


@register_torch_trt_decomposition(aten._linalg_slogdet.default)
def slogdet(A: Tensor) -> object:  # noqa: N803
    """Return sign and log magnitude of the determinants, and None for the LU factors and pivots (for gradients)."""
    if _is_too_large_to_decompose(A):
        return NotImplemented
    pivots, order, _ = _eliminate_by_gauss_jordan(A)
    return pivots.sign().prod(-1) * _permutation_sign(order), pivots.abs().log().sum(-1), None, None


@register_torch_trt_decomposition(aten.linalg_cholesky_ex.default)
def cholesky_ex(self: Tensor, *, upper: bool = False, check_errors: bool = False) -> object:
    if _is_too_large_to_decompose(self):
        return NotImplemented
    rest, columns, squares = self.mT if upper else self, list[Tensor](), list[Tensor]()
    for done in range(self.shape[-1]):
        square = rest[..., :1, :1]
        column = rest[..., :1] / square.sqrt()
        rest = rest[..., 1:, 1:] - column[..., 1:, :] * column[..., 1:, :].mT
        columns.append(pad(column, (0, 0, done, 0)))
        squares.append(square[..., 0, 0])
    factor = torch.cat(columns, -1)
    return factor.mT if upper else factor, _first_failed_step(~(torch.stack(squares, -1) > 0))


def _solve_triangular(a: Tensor, b: Tensor, upper: bool, unitriangular: bool = False) -> Tensor:
    """Solve ``a @ x == b`` for a triangular matrix ``a`` by substitution, row by row, and return ``x``."""
    size, rows = a.shape[-1], list[Tensor]()
    for k in range(size):
        at = size - 1 - k if upper else k
        row = b[..., -1:, :] if upper else b[..., :1, :]
        row = row if unitriangular else row / a[..., at : at + 1, at : at + 1]
        others = a[..., :at, at : at + 1] if upper else a[..., at + 1 :, at : at + 1]
        b = (b[..., :-1, :] if upper else b[..., 1:, :]) - others * row
        rows.append(row)
    return torch.cat(rows[::-1] if upper else rows, -2)


@register_torch_trt_decomposition(aten.linalg_solve_triangular.default)
def solve_triangular(
    self: Tensor,
    B: Tensor,  # noqa: N803
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> object:
    if _is_too_large_to_decompose(self):
        return NotImplemented
    a, b, upper = (self, B, upper) if left else (self.mT, B.mT, not upper)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    x = _solve_triangular(a, b.expand(*batch, *b.shape[-2:]), upper, unitriangular)
    return x if left else x.mT


@register_torch_trt_decomposition(aten.cholesky_solve.default)
def cholesky_solve(self: Tensor, input2: Tensor, upper: bool = False) -> object:
    if _is_too_large_to_decompose(input2):
        return NotImplemented
    batch = torch.broadcast_shapes(self.shape[:-2], input2.shape[:-2])
    factors = ((input2.mT, False), (input2, True)) if upper else ((input2, False), (input2.mT, True))
    return reduce(lambda b, row: _solve_triangular(row[0], b, row[1]), factors, self.expand(*batch, *self.shape[-2:]))


@register_torch_trt_decomposition(aten.cholesky_inverse.default)
def cholesky_inverse(self: Tensor, upper: bool = False) -> object:
    if _is_too_large_to_decompose(self):
        return NotImplemented
    one = torch.eye(self.shape[-1], dtype=self.dtype, device=self.device)
    return cholesky_solve(one.expand(self.shape), self, upper)
