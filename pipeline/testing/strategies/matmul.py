"""Random calls of matmuls, sums of products and distances, and of inverses, determinants and solvers of matrices.
Matrices to invert or solve are well-conditioned. Equal sizes of two operands have the same name."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from pipeline.aten.types import aten
from pipeline.testing.calls import Call, Dim, TensorSpec
from pipeline.testing.strategies.common import FLOATS, INTS, Draw, floats, name_sizes, seeds, strategy, tensors

dtypes = st.sampled_from((*FLOATS, *FLOATS, *INTS))
ROWS, INNER, COLUMNS = "n", "k", "m"


def _draw_sized_call(draw: Draw, target: object, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Call:
    """Generate a call of the target: choose a value for each named size in ``args``; sometimes a size is 0."""
    names = sorted({d for spec in args for d in spec.shape if isinstance(d, str)})
    zero = draw(st.sampled_from((None, None, None, None, *names)))
    low = {name: 0 if name == zero else 1 for name in names}
    sizes = {n: (low[n], 0 if n == zero and draw(st.booleans()) else draw(st.integers(1, 5)), 8) for n in names}
    return Call(target, args, kwargs or {}, sizes)


def _draw_operands(draw: Draw, *shapes: tuple[Dim, ...]) -> tuple[object, ...]:
    """Generate a tensor of each shape, all of one dtype; sizes may be names."""
    dtype = draw(dtypes)
    return tuple(draw(tensors(shape, dtype)) for shape in shapes)


A, B = (ROWS, INNER), (INNER, COLUMNS)
OPERANDS: dict[object, tuple[tuple[Dim, ...], ...]] = {
    aten.mm.default: (A, B),
    aten.bmm.default: (("b", *A), ("b", *B)),
    aten.mv.default: (A, (INNER,)),
    aten.dot.default: ((INNER,), (INNER,)),
    aten.addmm.default: ((COLUMNS,), A, B),
    aten.baddbmm.default: (("b", ROWS, COLUMNS), ("b", *A), ("b", *B)),
    aten.addmv.default: ((ROWS,), A, (INNER,)),
}
coefficients = st.sampled_from(((1, 1), (2, 3), (0, 1), (0, -2), (-1, -3), (1, 0)))
"""Pairs of beta and alpha, never of opposite signs: the error tolerance of a sum assumes that nothing cancels."""


@strategy(*OPERANDS)
def draw_product(draw: Draw, target: object) -> Call:
    """Generate products of vectors, matrices and batches, and sums of a tensor and such a product."""
    operands = OPERANDS[target]
    beta, alpha = draw(coefficients) if len(operands) == 3 else (None, None)
    kwargs = {} if beta is None else {"beta": beta, "alpha": alpha}
    return _draw_sized_call(draw, target, _draw_operands(draw, *operands), kwargs)


@strategy(aten.matmul.default)
def draw_batched_matmul(draw: Draw, target: object) -> Call:
    """Generate matmuls of vectors, matrices, and batches of them that broadcast."""
    vectors = draw(st.sampled_from(((False, False), (False, False), (True, False), (False, True), (True, True))))
    batch: list[Dim] = draw(st.sampled_from(([], ["b"], [2, "b"])))
    part: st.SearchStrategy[list[Dim]] = st.sampled_from((batch, batch, batch[1:], [1] * len(batch)))
    left, right = draw(part), draw(part)
    a: tuple[Dim, ...] = (INNER,) if vectors[0] else (*left, *A)
    b: tuple[Dim, ...] = (INNER,) if vectors[1] else (*right, *B)
    return _draw_sized_call(draw, target, _draw_operands(draw, a, b))


@strategy(aten.linear.default)
def draw_linear(draw: Draw, target: object) -> Call:
    shape, dtype = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)), draw(floats)
    constant = draw(st.booleans())
    outputs = draw(st.integers(1, 5))
    weight = draw(tensors((outputs, shape[-1]), dtype, constant=constant))
    bias = draw(st.none() | tensors((outputs,), dtype, constant=constant))
    call = Call(target, (draw(tensors(shape, dtype)), weight, bias))
    return draw(name_sizes(call, {0: range(len(shape) - 1)}))


booleans = st.booleans()
SIZES = {"n": 3}


@st.composite
def square_matrices(draw: Draw, value_kind: str = "regular") -> TensorSpec:
    """Generate a square matrix, or a batch of square matrices, with values of this kind."""
    size, batch = draw(st.sampled_from((1, 2, 3, 4, 8))), draw(st.sampled_from(((), ("n",), (2, "n"))))
    return TensorSpec((*batch, size, size), torch.float32, value_kind, seed=draw(seeds))


def _sizes_if_named(*specs: TensorSpec) -> dict[str, int]:
    """Return the argument ``sizes`` for a call of these tensors: empty if they have no named size."""
    return SIZES if any(spec.size_names for spec in specs) else {}


def _draw_second_operand(draw: Draw, matrix: TensorSpec, left: bool) -> TensorSpec:
    """Generate the right-hand side B of AX = B (``left``) or XA = B, for A = ``matrix``. B has A's batch dims or none.
    If A is 1 × 1, B always has them, since ``linalg.solve`` could take a B without them for a batch of vectors."""
    columns, size = draw(st.integers(1, 3)), matrix.shape[-1]
    batch = matrix.shape[:-2] if size == 1 else draw(st.sampled_from((matrix.shape[:-2], ())))
    return TensorSpec((*batch, *((size, columns) if left else (columns, size))), torch.float32, seed=draw(seeds))


@strategy(
    *(aten.linalg_inv_ex.default, aten.linalg_det.default, aten.linalg_slogdet.default),
    *(aten.linalg_cholesky_ex.default, aten.cholesky_inverse.default),
)
def draw_matrix_call(draw: Draw, target: object) -> Call:
    """Generate calls of operators of one square matrix: inverse, determinants, and Cholesky's, upper or lower."""
    cholesky = "cholesky" in str(target)
    a = draw(square_matrices("definite" if cholesky else "regular"))
    return Call(target, (a,), {"upper": draw(booleans)} if cholesky else {}, _sizes_if_named(a))


SOLVERS: dict[object, tuple[str, ...]] = {
    aten.linalg_solve.default: ("left",),
    aten.linalg_solve_triangular.default: ("upper", "left", "unitriangular"),
    aten.cholesky_solve.default: ("upper",),
}
"""The flags of the operators that solve AX = B (or XA = B, if not ``left``)."""


@strategy(*SOLVERS)
def draw_solve(draw: Draw, target: object) -> Call:
    flags = {name: draw(booleans) for name in SOLVERS[target]}
    a = draw(square_matrices("regular" if target is aten.linalg_solve.default else "definite"))
    b = _draw_second_operand(draw, a, flags.get("left", True))
    return Call(target, (b, a) if target is aten.cholesky_solve.default else (a, b), flags, _sizes_if_named(a, b))


orders = st.sampled_from((2.0, 1.0, 0.0, 3.0, 0.5, float("inf")))


@strategy(aten._cdist_forward.default)
def draw_cdist(draw: Draw, target: object) -> Call:
    batch, size = draw(st.sampled_from(((), ("b",)))), draw(st.integers(1, 4))
    a, b = (draw(tensors((*batch, name, size), torch.float32)) for name in ("n", "m"))
    sizes = {"n": 3, "m": 4, **({"b": 2} if batch else {})}
    return Call(target, (a, b, draw(orders), None), sizes=sizes)


@strategy(aten._pdist_forward.default)
def draw_pdist(draw: Draw, target: object) -> Call:
    shape = (draw(st.integers(2, 5)), draw(st.integers(1, 4)))
    return Call(target, (draw(tensors(shape, torch.float32)), draw(orders)))


@strategy(aten.linalg_cross.default)
def draw_cross(draw: Draw, target: object) -> Call:
    dim = draw(st.sampled_from((-1, 1, -2, 2)))
    shape: list[Any] = ["n", 3, 2] if dim in (1, -2) else ["n", 2, 3]
    dtype = draw(st.sampled_from((torch.float32, torch.int64)))
    a, b = (draw(tensors(shape, dtype)) for _ in range(2))
    return Call(target, (a, b), {"dim": dim}, {"n": 2})


@strategy(aten.addbmm.default)
def draw_addbmm(draw: Draw, target: object) -> Call:
    f, i = torch.float32, torch.int64
    dtype, beta, alpha = draw(st.sampled_from([(i, 0.5, 1.5), (f, 2.0, 3.0), (f, 0.0, 1.5), (i, 1.0, 3.0)]))
    specs = [draw(tensors(shape, dtype)) for shape in (("n", 4), (2, "n", 3), (2, 3, 4))]
    return Call(target, tuple(specs), {"beta": beta, "alpha": alpha}, {"n": 3})
