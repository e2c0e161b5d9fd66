"""Calls of elementwise operators with constrained arguments: conditions are bool, integer divisors are not zero."""

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
    dtypes,
    moved,
    named,
    numbers,
    shapes,
    tensors,
    values,
)

aten = torch.ops.aten


@calls(aten.where.self)
def where(draw: Draw, target: object) -> Call:
    condition, a, b = draw(broadcastable(3))
    dtype = draw(dtypes)
    other = draw(st.just(dtype) | dtypes)
    given = draw(tensors(a, dtype, values(dtype))), draw(tensors(b, other, values(other)))
    return draw(named(Call(target, (draw(tensors(condition, torch.bool)), *given))))


@calls(aten.masked_fill.Tensor, aten.masked_fill.Scalar)
def masked_fill(draw: Draw, target: object) -> Call:
    shape, mask = draw(broadcastable(2))
    dtype = draw(dtypes)
    scalar = target is aten.masked_fill.Scalar
    value = draw(numbers(dtype) if scalar else moved((), dtype))
    return draw(named(Call(target, (draw(moved(shape, dtype)), draw(tensors(mask, torch.bool)), value))))


@calls(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(draw: Draw, target: object) -> Call:
    a, b = draw(broadcastable(2))
    dtype = draw(st.sampled_from((*FLOATS, *INTS, torch.uint8)))
    divisor = tensors(b, dtype, "nonzero") if target is aten.floor_divide.default else numbers(dtype).filter(bool)
    return draw(named(Call(target, (draw(tensors(a, dtype, values(dtype))), draw(divisor)))))


@calls(aten.pow.Tensor_Scalar, aten.pow.Scalar, aten.pow.Tensor_Tensor)
def power(draw: Draw, target: object) -> Call:
    """Draw powers, without bools: eager's result is bool, that of its shape functions int64."""
    a, b = draw(broadcastable(2))
    dtype = draw(st.sampled_from((*FLOATS, *INTS)))
    whole = not dtype.is_floating_point
    bases = tensors(a, dtype, st.sampled_from(("small", "normal") if whole else ("positive", "special", "small")))
    exponents = st.sampled_from((2, 3, 4, 1, 0, 5, 11) if whole else (2, 0.5, 3, -1, 1.5, -2, -0.5, 0, 1, 2.0, 4))
    if target is aten.pow.Tensor_Scalar:
        return draw(named(Call(target, (draw(bases), draw(exponents)))))
    power = tensors(b, dtype, ("between", 0, 4) if whole else "small")
    number = draw(st.sampled_from((2, 3, 1) if whole else (2, 0.5, 10.0)))
    return draw(named(Call(target, (number if target is aten.pow.Scalar else draw(bases), draw(power)))))


@calls(aten.round.decimals)
def round_decimals(draw: Draw, target: object) -> Call:
    """Draw rounding to decimals, without ties at the last one: there the error of scaling decides the direction."""
    shape = draw(shapes())
    spec = tensors(shape, torch.float32, ("between", -90, 90))
    return draw(named(Call(target, (draw(spec),), {"decimals": draw(st.sampled_from((1, 2, 0, 3)))})))


STRATEGIES = {**where, **masked_fill, **floor_divide, **power, **round_decimals}
