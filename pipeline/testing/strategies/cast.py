"""Calls of casts and copies. Floats are cast to integers only within their range: beyond it, devices differ."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from pipeline.testing.calls import Call
from pipeline.testing.strategies.common import Draw, calls, dtypes, named, shapes, tensors, values

aten = torch.ops.aten
prims = torch.ops.prims


def _held(source: torch.dtype, dtype: torch.dtype) -> st.SearchStrategy[str]:
    if source.is_floating_point and not dtype.is_floating_point and dtype != torch.bool:
        return st.just("positive")
    return values(source)


@calls(aten._to_copy.default)
def to_copy(draw: Draw, target: object) -> Call:
    source, dtype = draw(dtypes), draw(dtypes)
    spec = draw(tensors(draw(shapes()), source, _held(source, dtype)))
    return draw(named(Call(target, (spec,), {"dtype": dtype} if draw(st.integers(0, 9)) else {})))


@calls(prims.convert_element_type.default)
def convert_element_type(draw: Draw, target: object) -> Call:
    source, dtype = draw(dtypes), draw(dtypes)
    return draw(named(Call(target, (draw(tensors(draw(shapes()), source, _held(source, dtype))), dtype))))


@calls(aten.copy.default)
def copy(draw: Draw, target: object) -> Call:
    source, dtype = draw(dtypes), draw(dtypes)
    shape = draw(shapes())
    part = draw(st.sampled_from((shape, shape[1:], tuple(1 for _ in shape), ())))
    given = draw(tensors(shape, dtype)), draw(tensors(part, source, _held(source, dtype)))
    return draw(named(Call(target, given)))


STRATEGIES = {**to_copy, **convert_element_type, **copy}
