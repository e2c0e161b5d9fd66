"""Calls of topk and sort, of searches in sorted tensors, and of order statistics.

If equal elements may come in any order, elements are distinct or indices are not requested."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from pipeline.testing.calls import Call, Size
from pipeline.testing.strategies.common import (
    ORDERED_VALUES,
    Draw,
    calls,
    dims,
    dtypes,
    floats,
    ints,
    named,
    shapes,
    tensors,
    values,
)

aten = torch.ops.aten

ORDERED = ints | dtypes.filter(lambda dtype: dtype != torch.bool)


@calls(aten.topk.default)
def topk(draw: Draw, target: object) -> Call:
    shape = draw(shapes(0, 5, zero=False))
    dim, dtype = draw(dims(len(shape))), draw(ORDERED)
    k = draw(st.integers(0, shape[dim])) if shape else 1
    ties = draw(st.integers(0, 3)) == 0
    spec = tensors(shape, dtype, values(dtype, ORDERED_VALUES) if ties else "distinct")
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
    spec = tensors(shape, dtype, values(dtype, ORDERED_VALUES) if ties else "distinct")
    kwargs = {"stable": ties or draw(st.sampled_from((True, False, None)))} if stable else {}
    place = {"dim": draw(dims(len(shape))), "descending": draw(st.booleans())}
    outputs = (0,) if ties and not stable else None
    return draw(named(Call(target, (draw(spec),), {**kwargs, **place}, outputs=outputs)))


@calls(aten.searchsorted.Tensor, aten.bucketize.Tensor)
def searched(draw: Draw, target: object) -> Call:
    """Draw short and long sequences, sometimes with NaN at the end."""
    dtype, length = draw(floats | ints), draw(st.sampled_from((0, 1, 2, 3, 5, 8, 70)))
    leading = draw(st.sampled_from(((), (2,)))) if target is aten.searchsorted.Tensor else ()
    sequence = draw(tensors((*leading, length), dtype, "sorted", draw(st.booleans())))
    x = draw(tensors((*leading, draw(st.sampled_from((3, 7)))), dtype, values(dtype, ORDERED_VALUES)))
    kwargs = {"right": draw(st.booleans()), "out_int32": draw(st.booleans())}
    args = (sequence, x) if target is aten.searchsorted.Tensor else (x, sequence)
    varies = {args.index(x): [-1]} | ({} if sequence.constant else {args.index(sequence): [-1]})
    return draw(named(Call(target, args, kwargs), draw(st.sampled_from([{i: d} for i, d in varies.items()])), least=0))


@calls(aten.kthvalue.default)
def kthvalue(draw: Draw, target: object) -> Call:
    """Draw calls that request only values: eager's index of equal elements depends on its algorithm."""
    shape = draw(shapes(0, 3, zero=False))
    dim, dtype = draw(dims(len(shape))), draw(ORDERED)
    x = draw(tensors(shape, dtype, values(dtype, ORDERED_VALUES)))
    k = draw(st.integers(1, shape[dim])) if shape else 1
    rest = [d for d in range(len(shape)) if d != dim % len(shape)] if shape else []
    return draw(named(Call(target, (x, k, dim, draw(st.booleans())), outputs=(0,)), {0: rest}))


@calls(aten.median.dim, aten.nanmedian.dim, aten.median.default, aten.nanmedian.default)
def median(draw: Draw, target: object) -> Call:
    """Draw nonempty integers: for empty ones, eager's result is NaN converted to an integer by the processor."""
    dtype = draw(ORDERED)
    x = draw(tensors(draw(shapes(0, 3, zero=dtype.is_floating_point)), dtype, values(dtype, ORDERED_VALUES)))
    if target in (aten.median.default, aten.nanmedian.default):
        return draw(named(Call(target, (x,))))
    return draw(named(Call(target, (x, draw(dims(len(x.shape))), draw(st.booleans())), outputs=(0,))))


@calls(aten.isin.Tensor_Tensor)
def isin(draw: Draw, target: object) -> Call:
    """Draw few elements to compare with, or enough that eager sorts both tensors."""
    dtype = draw(ORDERED)
    kind = values(dtype, ORDERED_VALUES)
    x, among = (draw(tensors(shape, dtype, kind)) for shape in (draw(shapes(0, 3)), (draw(st.sampled_from((3, 40))),)))
    return draw(named(Call(target, (x, among), {"invert": draw(st.booleans())}), {0: range(len(x.shape))}))


STRATEGIES = {**topk, **sort, **searched, **kthvalue, **median, **isin}
