"""Calls of topk and sort. Where equal elements may come in any order, the elements differ."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from pipeline.testing.calls import Call, Size
from pipeline.testing.strategies.common import Draw, calls, dims, dtypes, named, shapes, tensors

aten = torch.ops.aten

ORDERED = dtypes.filter(lambda dtype: dtype != torch.bool)


@calls(aten.topk.default)
def topk(draw: Draw, target: Any) -> Call:
    shape = draw(shapes(0, 5, zero=False))
    dim, dtype = draw(dims(len(shape))), draw(ORDERED)
    k = draw(st.integers(0, shape[dim])) if shape else 1
    call = Call(target, (draw(tensors(shape, dtype, "distinct")), k, dim, draw(st.booleans())))
    if shape and draw(st.integers(0, 3)) == 0:
        spec = tensors(["n" if d == dim % len(shape) else s for d, s in enumerate(shape)], dtype, "distinct")
        return Call(target, (draw(spec), Size("n"), dim, draw(st.booleans())), sizes={"n": (1, shape[dim], 8)})
    rest = [d for d in range(len(shape)) if d != dim % len(shape)] if shape else []
    return draw(named(call, {0: rest}))


@calls(aten.sort.default, aten.sort.stable)
def sort(draw: Draw, target: Any) -> Call:
    shape, stable = draw(shapes()), target is aten.sort.stable
    ties = stable and draw(st.booleans())
    spec = tensors(shape, draw(dtypes if ties else ORDERED), "small" if ties else "distinct")
    kwargs = {"stable": ties or draw(st.sampled_from((True, False, None)))} if stable else {}
    place = {"dim": draw(dims(len(shape))), "descending": draw(st.booleans())}
    return draw(named(Call(target, (draw(spec),), {**kwargs, **place})))


STRATEGIES = {**topk, **sort}
