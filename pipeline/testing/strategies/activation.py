"""Calls of activation functions with more than one tensor or result."""

from __future__ import annotations

import torch
from attrs import evolve
from hypothesis import strategies as st

from pipeline.testing.calls import Call
from pipeline.testing.strategies.common import Draw, calls, floats, named, shapes, tensors, values

aten = torch.ops.aten


@calls(aten._prelu_kernel.default)
def prelu(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes(2, 4)), draw(floats)
    slopes = (1, shape[1] if draw(st.booleans()) else 1, *[1] * (len(shape) - 2))
    weight = draw(tensors(slopes, dtype, constant=draw(st.booleans())))
    rest = [d for d in range(len(shape)) if d != 1]
    return draw(named(Call(target, (draw(tensors(shape, dtype, values(dtype))), weight)), {0: rest}))


@calls(aten.log_sigmoid_forward.default)
def log_sigmoid(draw: Draw, target: object) -> Call:
    """Draw calls for the first result only: the second is for the gradient, and eager's own differs between devices."""
    dtype = draw(floats)
    call = draw(named(Call(target, (draw(tensors(draw(shapes()), dtype, values(dtype))),))))
    return evolve(call, outputs=(0,))


STRATEGIES = {**prelu, **log_sigmoid}
