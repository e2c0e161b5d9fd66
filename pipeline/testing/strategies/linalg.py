"""Calls of inverses, determinants and solutions, for matrices far from singular."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from pipeline.testing.calls import Call, TensorSpec
from pipeline.testing.strategies.common import Draw, calls, seeds

aten = torch.ops.aten

booleans = st.booleans()
SIZES = {"n": 3}


@st.composite
def matrices(draw: Draw, values: str = "regular") -> TensorSpec:
    """Draw a square matrix, or a batch of them."""
    size, batch = draw(st.sampled_from((1, 2, 3, 4, 8))), draw(st.sampled_from(((), ("n",), (2, "n"))))
    return TensorSpec((*batch, size, size), torch.float32, values, seed=draw(seeds))


def _sizes(*specs: TensorSpec) -> dict[str, int]:
    return SIZES if any(spec.names for spec in specs) else {}


def _other_operand(draw: Draw, a: TensorSpec, left: bool) -> TensorSpec:
    """Draw the other operand of a matmul or solve, of the same batch or of none. For 1 × 1 matrices it has their batch,
    since ``linalg.solve`` may take an operand with a single row for a batch of vectors."""
    columns, size = draw(st.integers(1, 3)), a.shape[-1]
    batch = a.shape[:-2] if size == 1 else draw(st.sampled_from((a.shape[:-2], ())))
    return TensorSpec((*batch, *((size, columns) if left else (columns, size))), torch.float32, seed=draw(seeds))


@calls(aten.linalg_inv_ex.default, aten.linalg_det.default, aten.linalg_slogdet.default)
def of_one(draw: Draw, target: object) -> Call:
    a = draw(matrices())
    return Call(target, (a,), sizes=_sizes(a))


@calls(aten.linalg_cholesky_ex.default)
def cholesky(draw: Draw, target: object) -> Call:
    a = draw(matrices("definite"))
    return Call(target, (a,), {"upper": draw(booleans)}, _sizes(a))


@calls(aten.cholesky_inverse.default)
def cholesky_inverse(draw: Draw, target: object) -> Call:
    a = draw(matrices("definite"))
    return Call(target, (a, draw(booleans)), sizes=_sizes(a))


@calls(aten.cholesky_solve.default)
def cholesky_solve(draw: Draw, target: object) -> Call:
    a = draw(matrices("definite"))
    b = _other_operand(draw, a, True)
    return Call(target, (b, a, draw(booleans)), sizes=_sizes(a, b))


@calls(aten.linalg_solve_triangular.default)
def solve_triangular(draw: Draw, target: object) -> Call:
    a, left = draw(matrices("definite")), draw(booleans)
    b = _other_operand(draw, a, left)
    kwargs: dict[str, Any] = {"upper": draw(booleans), "left": left, "unitriangular": draw(booleans)}
    return Call(target, (a, b), kwargs, _sizes(a, b))


@calls(aten.linalg_solve.default)
def solve(draw: Draw, target: object) -> Call:
    a, left = draw(matrices()), draw(booleans)
    b = _other_operand(draw, a, left)
    return Call(target, (a, b), {"left": left}, _sizes(a, b))


STRATEGIES = {**of_one, **cholesky, **cholesky_inverse, **cholesky_solve, **solve_triangular, **solve}
