"""Calls that create tensors. Small results with static sizes are folded into constants, so some calls are large."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from pipeline.aten.types import Target
from pipeline.testing.calls import Call, Size, TensorSpec
from pipeline.testing.strategies.common import FLOATS, INTS, Draw, calls, dtypes, named, numbers, shapes, tensors

aten = torch.ops.aten

LARGE = (300, 300)
"""A shape with more elements than constant folding takes."""

SIZES = {"n": (1, 3, 8)}


@calls(aten.full.default)
def full(draw: Draw, target: object) -> Call:
    dtype = draw(dtypes)
    value = draw(numbers(dtype))
    chosen = {} if draw(st.booleans()) else {"dtype": dtype}
    if draw(st.booleans()):
        return Call(target, (LARGE, value), chosen)
    shape = draw(st.sampled_from([("n", 3), (2, "n"), ("n",), ("n", 1, "n")]))
    return Call(target, ([Size(s) if isinstance(s, str) else s for s in shape], value), chosen, SIZES)


@calls(aten.new_full.default)
def new_full(draw: Draw, target: object) -> Call:
    dtype = draw(dtypes)
    spec = draw(tensors(("n", 2), dtype))
    return Call(target, (spec, [draw(st.sampled_from([Size("n", 2), 3])), 2], draw(numbers(dtype))), sizes=SIZES)


@calls(aten.fill.Tensor)
def fill(draw: Draw, target: object) -> Call:
    dtype = draw(dtypes)
    return draw(named(Call(target, (draw(tensors(draw(shapes()), dtype)), draw(tensors((), dtype))))))


@calls(aten.scalar_tensor.default)
def scalar_tensor(draw: Draw, target: object) -> Call:
    dtype = draw(st.sampled_from((*FLOATS, *INTS, torch.uint8)))
    return Call(target, (Size("n"),), {"dtype": dtype}, SIZES)


@calls(aten.arange.start_step, aten.arange.start, aten.arange.default)
def arange(draw: Draw, target: Target) -> Call:
    """Draw integer steps, or quarters in floats: sums of other steps are rounded differently by each device. For floats
    and a size, PyTorch knows the length only for steps of 1."""
    dtype = draw(st.sampled_from((torch.int64, torch.int32, torch.float32, torch.float16)))
    large = draw(st.booleans())
    end: object = 70000 if large else Size("n", draw(st.sampled_from((1, 2, 3))))
    start = draw(st.sampled_from((0, 1, -2)))
    steps = ((1, 0.25, 2) if large else (1,)) if dtype.is_floating_point else (1, 2, 3)
    step = draw(st.sampled_from(steps))
    dtype = torch.float32 if large and dtype == torch.float16 else dtype
    args = {aten.arange.start_step: (start, end, step), aten.arange.start: (start, end)}.get(target, (end,))
    return Call(target, args, {"dtype": dtype}, {} if large else SIZES)


@calls(aten.empty.memory_format, aten.empty_permuted.default, aten.empty_strided.default)
def empty(draw: Draw, target: Target) -> Call:
    """Draw calls for empty tensors: elements of others are undefined."""
    shape = [0, Size("n")] if draw(st.booleans()) else [Size("n"), 0]
    more = {aten.empty_permuted.default: ([0, 1],), aten.empty_strided.default: ([1, 1],)}.get(target, ())
    return Call(target, (shape, *more), {"dtype": draw(dtypes)}, SIZES)


@calls(aten.empty_like.default, aten.new_empty.default, aten.new_empty_strided.default)
def empty_like(draw: Draw, target: Target) -> Call:
    """Draw calls for empty tensors: elements of others are undefined."""
    spec = TensorSpec(("n", 0), draw(dtypes))
    more = {aten.new_empty.default: ([Size("n"), 0],), aten.new_empty_strided.default: ([Size("n"), 0], [1, 1])}
    return Call(target, (spec, *more.get(target, ())), sizes=SIZES)


@calls(aten.native_dropout.default)
def native_dropout(draw: Draw, target: object) -> Call:
    spec = draw(tensors(draw(shapes()), draw(st.sampled_from(FLOATS))))
    return draw(named(Call(target, (spec, draw(st.sampled_from((0.0, 0.5))), False))))


STRATEGIES = {
    **full,
    **new_full,
    **fill,
    **scalar_tensor,
    **arange,
    **empty,
    **empty_like,
    **native_dropout,
}
