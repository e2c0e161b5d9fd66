"""Random calls of elementwise operators with restricted arguments: bool conditions, integer divisors other than zero.
Floats that are cast to integers are in the integers' range; beyond it, devices give different results."""

from __future__ import annotations

import torch
from attrs import evolve
from hypothesis import strategies as st

from pipeline.aten.types import aten
from pipeline.testing.calls import Call
from pipeline.testing.strategies.common import (
    FLOATS,
    INTS,
    Draw,
    any_tensors,
    broadcast_shapes,
    dtypes,
    floats,
    name_sizes,
    numbers,
    other_dims,
    shapes,
    strategy,
    tensors,
    value_kinds,
)


@strategy(aten.masked_fill.Tensor, aten.masked_fill.Scalar)
def draw_masked_fill(draw: Draw, target: object) -> Call:
    shape, mask = draw(broadcast_shapes(2))
    dtype = draw(dtypes)
    scalar = target is aten.masked_fill.Scalar
    value = draw(numbers(dtype) if scalar else any_tensors((), dtype))
    return draw(name_sizes(Call(target, (draw(any_tensors(shape, dtype)), draw(tensors(mask, torch.bool)), value))))


@strategy(aten.floor_divide.default, aten.floor_divide.Scalar)
def draw_floor_divide(draw: Draw, target: object) -> Call:
    a, b = draw(broadcast_shapes(2))
    dtype = draw(st.sampled_from((*FLOATS, *INTS, torch.uint8)))
    divisor = tensors(b, dtype, "nonzero") if target is aten.floor_divide.default else numbers(dtype).filter(bool)
    return draw(name_sizes(Call(target, (draw(tensors(a, dtype, value_kinds(dtype))), draw(divisor)))))


@strategy(aten.pow.Tensor_Scalar, aten.pow.Scalar, aten.pow.Tensor_Tensor)
def draw_power(draw: Draw, target: object) -> Call:
    """Generate powers, but not of bools: the result is bool in eager, and int64 on fake tensors."""
    a, b = draw(broadcast_shapes(2))
    dtype = draw(st.sampled_from((*FLOATS, *INTS)))
    whole = not dtype.is_floating_point
    bases = tensors(a, dtype, st.sampled_from(("small", "normal") if whole else ("positive", "special", "small")))
    exponents = st.sampled_from((2, 3, 4, 1, 0, 5, 11) if whole else (2, 0.5, 3, -1, 1.5, -2, -0.5, 0, 1, 2.0, 4))
    if target is aten.pow.Tensor_Scalar:
        return draw(name_sizes(Call(target, (draw(bases), draw(exponents)))))
    power = tensors(b, dtype, ("between", 0, 4) if whole else "small")
    number = draw(st.sampled_from((2, 3, 1) if whole else (2, 0.5, 10.0)))
    return draw(name_sizes(Call(target, (number if target is aten.pow.Scalar else draw(bases), draw(power)))))


@strategy(aten.round.decimals)
def draw_round_decimals(draw: Draw, target: object) -> Call:
    """Generate calls of ``round.decimals``; no value is halfway between results, where rounding depends on scaling."""
    shape = draw(shapes())
    spec = tensors(shape, torch.float32, ("between", -90, 90))
    return draw(name_sizes(Call(target, (draw(spec),), {"decimals": draw(st.sampled_from((1, 2, 0, 3)))})))


@strategy(aten._prelu_kernel.default)
def draw_prelu(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes(2, 4)), draw(floats)
    slopes = (1, shape[1] if draw(st.booleans()) else 1, *[1] * (len(shape) - 2))
    weight = draw(tensors(slopes, dtype, constant=draw(st.booleans())))
    return draw(name_sizes(Call(target, (draw(any_tensors(shape, dtype)), weight)), {0: other_dims(shape, 1)}))


@strategy(aten.log_sigmoid_forward.default)
def draw_log_sigmoid(draw: Draw, target: object) -> Call:
    """Generate calls that request only the first result: the second is for gradients, and device-dependent in eager."""
    dtype = draw(floats)
    call = draw(name_sizes(Call(target, (draw(tensors(draw(shapes()), dtype, value_kinds(dtype))),))))
    return evolve(call, outputs=(0,))


prims = torch.ops.prims


def _castable_kind(source_dtype: torch.dtype, result_dtype: torch.dtype) -> st.SearchStrategy[str]:
    """Return a strategy for the kind of values (in `VALUES`) to cast: only ``positive`` from floats to integers."""
    if source_dtype.is_floating_point and not result_dtype.is_floating_point and result_dtype != torch.bool:
        return st.just("positive")
    return value_kinds(source_dtype)


@strategy(aten._to_copy.default, prims.convert_element_type.default)
def draw_cast(draw: Draw, target: object) -> Call:
    source, dtype = draw(dtypes), draw(dtypes)
    spec = draw(tensors(draw(shapes()), source, _castable_kind(source, dtype)))
    if target is prims.convert_element_type.default:
        return draw(name_sizes(Call(target, (spec, dtype))))
    return draw(name_sizes(Call(target, (spec,), {"dtype": dtype} if draw(st.integers(0, 9)) else {})))


@strategy(aten.copy.default)
def draw_copy(draw: Draw, target: object) -> Call:
    source, dtype = draw(dtypes), draw(dtypes)
    shape = draw(shapes())
    part = draw(st.sampled_from((shape, shape[1:], tuple(1 for _ in shape), ())))
    given = draw(tensors(shape, dtype)), draw(tensors(part, source, _castable_kind(source, dtype)))
    return draw(name_sizes(Call(target, given)))
