"""Calls of topk and sort. If equal elements may come in any order, elements are distinct or indices are not
requested."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from pipeline.testing.calls import Call, Size
from pipeline.testing.strategies.common import Draw, calls, dims, dtypes, ints, named, shapes, tensors, values

aten = torch.ops.aten

TIED = ("normal", "small", "positive", "unit", "large", "no nan", "no infinity")
"""NaN and infinity have no order between them in TensorRT's TopK."""

ORDERED = ints | dtypes.filter(lambda dtype: dtype != torch.bool)


@calls(aten.topk.default)
def topk(draw: Draw, target: object) -> Call:
    shape = draw(shapes(0, 5, zero=False))
    dim, dtype = draw(dims(len(shape))), draw(ORDERED)
    k = draw(st.integers(0, shape[dim])) if shape else 1
    ties = draw(st.integers(0, 3)) == 0
    spec = tensors(shape, dtype, values(dtype, TIED) if ties else "distinct")
    call = Call(target, (draw(spec), k, dim, draw(st.booleans())), outputs=(0,) if ties else None)
    if shape and draw(st.integers(0, 3)) == 0:
        spec = tensors(["n" if d == dim % len(shape) else s for d, s in enumerate(shape)], dtype, "distinct")
        return Call(target, (draw(spec), Size("n"), dim, draw(st.booleans())), sizes={"n": (1, shape[dim], 8)})
    rest = [d for d in range(len(shape)) if d != dim % len(shape)] if shape else []
    return draw(named(call, {0: rest}))


@calls(aten.sort.default, aten.sort.stable)
def sort(draw: Draw, target: object) -> Call:
    shape, stable = draw(shapes()), target is aten.sort.stable
    dtype = draw(ORDERED | dtypes)
    ties = dtype == torch.bool or draw(st.booleans())
    spec = tensors(shape, dtype, values(dtype, TIED) if ties else "distinct")
    kwargs = {"stable": ties or draw(st.sampled_from((True, False, None)))} if stable else {}
    place = {"dim": draw(dims(len(shape))), "descending": draw(st.booleans())}
    outputs = (0,) if ties and not stable else None
    return draw(named(Call(target, (draw(spec),), {**kwargs, **place}, outputs=outputs)))


STRATEGIES = {**topk, **sort}
