"""Calls of matmuls: the sizes that two operands share have one name."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from pipeline.aten.types import Argument
from pipeline.testing.calls import Call, Dim
from pipeline.testing.strategies.common import FLOATS, INTS, Draw, calls, floats, named, tensors

aten = torch.ops.aten

dtypes = st.sampled_from((*FLOATS, *FLOATS, *INTS))
ROWS, INNER, COLUMNS = "n", "k", "m"


def _sized(draw: Draw, target: object, args: tuple[Argument, ...], kwargs: dict[str, Argument] | None = None) -> Call:
    """Draw the call with sizes for the names that it uses; sometimes one is 0."""
    names = sorted({d for spec in args for d in spec.shape if isinstance(d, str)})
    zero = draw(st.sampled_from((None, None, None, None, *names)))
    low = {name: 0 if name == zero else 1 for name in names}
    sizes = {n: (low[n], 0 if n == zero and draw(st.booleans()) else draw(st.integers(1, 5)), 8) for n in names}
    return Call(target, args, kwargs or {}, sizes)


def _operands(draw: Draw, *shapes: tuple[Dim, ...]) -> tuple[object, ...]:
    dtype = draw(dtypes)
    return tuple(draw(tensors(shape, dtype)) for shape in shapes)


A, B = (ROWS, INNER), (INNER, COLUMNS)
OPERANDS: dict[object, tuple[tuple[Dim, ...], ...]] = {
    aten.mm.default: (A, B),
    aten.bmm.default: (("b", *A), ("b", *B)),
    aten.mv.default: (A, (INNER,)),
    aten.dot.default: ((INNER,), (INNER,)),
}


@calls(*OPERANDS)
def products(draw: Draw, target: object) -> Call:
    return _sized(draw, target, _operands(draw, *OPERANDS[target]))


SUMS: dict[object, tuple[tuple[Dim, ...], ...]] = {
    aten.addmm.default: ((COLUMNS,), A, B),
    aten.baddbmm.default: (("b", ROWS, COLUMNS), ("b", *A), ("b", *B)),
    aten.addmv.default: ((ROWS,), A, (INNER,)),
}
coefficients = st.sampled_from(((1, 1), (2, 3), (0, 1), (0, -2), (-1, -3), (1, 0)))
"""beta and alpha, never of opposite signs: the tolerance of a sum assumes that nothing cancels."""


@calls(*SUMS)
def sums(draw: Draw, target: object) -> Call:
    beta, alpha = draw(coefficients)
    return _sized(draw, target, _operands(draw, *SUMS[target]), {"beta": beta, "alpha": alpha})


@calls(aten.matmul.default)
def matmul(draw: Draw, target: object) -> Call:
    """Draw vectors, matrices, and batches of them that broadcast."""
    vectors = draw(st.sampled_from(((False, False), (False, False), (True, False), (False, True), (True, True))))
    batch: list[Dim] = draw(st.sampled_from(([], ["b"], [2, "b"])))
    part: st.SearchStrategy[list[Dim]] = st.sampled_from((batch, batch, batch[1:], [1] * len(batch)))
    left, right = draw(part), draw(part)
    a: tuple[Dim, ...] = (INNER,) if vectors[0] else (*left, *A)
    b: tuple[Dim, ...] = (INNER,) if vectors[1] else (*right, *B)
    return _sized(draw, target, _operands(draw, a, b))


@calls(aten.linear.default)
def linear(draw: Draw, target: object) -> Call:
    shape, dtype = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)), draw(floats)
    constant = draw(st.booleans())
    outputs = draw(st.integers(1, 5))
    weight = draw(tensors((outputs, shape[-1]), dtype, constant=constant))
    bias = draw(st.none() | tensors((outputs,), dtype, constant=constant))
    call = Call(target, (draw(tensors(shape, dtype)), weight, bias))
    return draw(named(call, {0: range(len(shape) - 1)}))


STRATEGIES = {**products, **sums, **matmul, **linear}
