"""Calls of reductions whose arguments are tied, and of prims."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from pipeline.testing.calls import Call
from pipeline.testing.strategies.common import (
    FLOATS,
    INTS,
    Draw,
    broadcastable,
    calls,
    dim_lists,
    named,
    shapes,
    tensors,
    values,
)

aten = torch.ops.aten
prims = torch.ops.prims

arithmetic = st.sampled_from((*FLOATS, *INTS))


@calls(aten.linalg_vector_norm.default)
def vector_norm(draw: Draw, target: object) -> Call:
    shape, infinite = draw(shapes()), float("inf")
    order = draw(st.sampled_from((2, 1, 0, 3, 2.5, 0.5, infinite, -infinite)))
    spec = draw(tensors(shape, draw(st.sampled_from(FLOATS)), values(torch.float32)))
    kwargs = {"keepdim": draw(st.booleans())}
    return draw(named(Call(target, (spec, order, draw(dim_lists(len(shape)) | st.none())), kwargs)))


@calls(aten.histc.default)
def histc(draw: Draw, target: object) -> Call:
    spec = draw(tensors(draw(shapes()), torch.float32, values(torch.float32, ("normal", "small", "unit"))))
    low = draw(st.sampled_from((-1, 0, -3.0, 0.5)))
    return draw(named(Call(target, (spec, draw(st.integers(1, 7)), low, low + draw(st.sampled_from((1, 4, 2.5)))))))


@calls(prims.div.default)
def div(draw: Draw, target: object) -> Call:
    (a, _), dtype = draw(broadcastable(2)), draw(arithmetic)
    return draw(named(Call(target, (draw(tensors(a, dtype, values(dtype))), draw(tensors(a, dtype, "nonzero"))))))


@calls(prims.sum.default)
def total(draw: Draw, target: object) -> Call:
    shape = draw(shapes(1))
    dims = sorted(d % len(shape) for d in draw(dim_lists(len(shape), 1)))
    dtype = draw(arithmetic)
    return draw(named(Call(target, (draw(tensors(shape, dtype, values(dtype))), dims))))


STRATEGIES = {**vector_norm, **histc, **div, **total}
