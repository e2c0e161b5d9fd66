"""Random calls of reductions, softmax, topk, sort, searches in sorted tensors, and order statistics.
If the order of equal elements is unspecified, elements are distinct or indices are not requested."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from pipeline.aten.types import Target, aten
from pipeline.testing.calls import Call, Size
from pipeline.testing.strategies.common import (
    FLOATS,
    INTS,
    ORDERED_VALUES,
    Draw,
    broadcast_shapes,
    dim_lists,
    dims,
    dtypes,
    floats,
    ints,
    name_sizes,
    other_dims,
    replace_size,
    shapes,
    strategy,
    tensors,
    value_kinds,
)

prims = torch.ops.prims

arithmetic = st.sampled_from((*FLOATS, *INTS))


@strategy(aten.linalg_vector_norm.default)
def draw_vector_norm(draw: Draw, target: object) -> Call:
    shape, infinite = draw(shapes()), float("inf")
    order = draw(st.sampled_from((2, 1, 0, 3, 2.5, 0.5, infinite, -infinite)))
    spec = draw(tensors(shape, draw(floats), value_kinds(torch.float32)))
    kwargs = {"keepdim": draw(st.booleans())}
    return draw(name_sizes(Call(target, (spec, order, draw(dim_lists(len(shape)) | st.none())), kwargs)))


@strategy(aten.histc.default)
def draw_histc(draw: Draw, target: object) -> Call:
    spec = draw(tensors(draw(shapes()), torch.float32, value_kinds(torch.float32, ("normal", "small", "unit"))))
    low = draw(st.sampled_from((-1, 0, -3.0, 0.5)))
    high = low + draw(st.sampled_from((1, 4, 2.5)))
    return draw(name_sizes(Call(target, (spec, draw(st.integers(1, 7)), low, high))))


@strategy(prims.div.default)
def draw_division(draw: Draw, target: object) -> Call:
    """Generate calls of ``prims.div`` with tensors of equal shape and a divisor without zeros."""
    (a, _), dtype = draw(broadcast_shapes(2)), draw(arithmetic)
    dividend, divisor = (draw(tensors(a, dtype, kinds)) for kinds in (value_kinds(dtype), "nonzero"))
    return draw(name_sizes(Call(target, (dividend, divisor))))


@strategy(prims.sum.default)
def draw_sum(draw: Draw, target: object) -> Call:
    shape = draw(shapes(1))
    dims = sorted(d % len(shape) for d in draw(dim_lists(len(shape), 1)))
    dtype = draw(arithmetic)
    return draw(name_sizes(Call(target, (draw(tensors(shape, dtype, value_kinds(dtype))), dims))))


# RTX 1.4 drops the middle of the casts int64 -> float16 -> float32 (softmax gives 1.0 for NaN where float16 overflows):
# integers that a half rounds are not drawn for a half.
VALUES = st.sampled_from(("normal", "large", "special"))


@strategy(aten._softmax.default, aten._log_softmax.default, aten.softmax.int, aten.log_softmax.int)
def draw_softmax(draw: Draw, target: Target) -> Call:
    """Generate calls of softmax and its logarithm; some of the overloads ``int`` give the result's dtype."""
    native = target._overloadname == "default"
    shape, dtype = draw(shapes()), draw(floats if native else floats | st.just(torch.int64))
    wanted = False if native else draw(floats if dtype == torch.int64 else st.none() | st.just(torch.float32))
    values = "normal" if dtype == torch.int64 and wanted != torch.float32 else VALUES
    return draw(name_sizes(Call(target, (draw(tensors(shape, dtype, values)), draw(dims(len(shape))), wanted))))


ORDERED = ints | dtypes.filter(lambda dtype: dtype != torch.bool)


@strategy(aten.topk.default)
def draw_topk(draw: Draw, target: object) -> Call:
    shape = draw(shapes(0, 5, with_zero=False))
    dim, dtype = draw(dims(len(shape))), draw(ORDERED)
    k = draw(st.integers(0, shape[dim])) if shape else 1
    ties = draw(st.integers(0, 3)) == 0
    spec = tensors(shape, dtype, value_kinds(dtype, ORDERED_VALUES) if ties else "distinct")
    call = Call(target, (draw(spec), k, dim, draw(st.booleans())), outputs=(0,) if ties else None)
    if shape and draw(st.integers(0, 3)) == 0:
        spec = tensors(replace_size(shape, dim, "n"), dtype, "distinct")
        return Call(target, (draw(spec), Size("n"), dim, draw(st.booleans())), sizes={"n": (1, shape[dim], 8)})
    return draw(name_sizes(call, {0: other_dims(shape, dim)}))


@strategy(aten.sort.default, aten.sort.stable)
def draw_sort(draw: Draw, target: object) -> Call:
    shape, stable = draw(shapes()), target is aten.sort.stable
    dtype = draw(ORDERED | dtypes)
    ties = dtype == torch.bool or draw(st.booleans())
    spec = tensors(shape, dtype, value_kinds(dtype, ORDERED_VALUES) if ties else "distinct")
    kwargs = {"stable": ties or draw(st.sampled_from((True, False, None)))} if stable else {}
    place = {"dim": draw(dims(len(shape))), "descending": draw(st.booleans())}
    outputs = (0,) if ties and not stable else None
    return draw(name_sizes(Call(target, (draw(spec),), {**kwargs, **place}, outputs=outputs)))


@strategy(aten.searchsorted.Tensor, aten.bucketize.Tensor)
def draw_searchsorted(draw: Draw, target: object) -> Call:
    """Generate searches in short and long sorted sequences, some of which have NaN at the end."""
    dtype, length = draw(floats | ints), draw(st.sampled_from((0, 1, 2, 3, 5, 8, 70)))
    leading = draw(st.sampled_from(((), (2,)))) if target is aten.searchsorted.Tensor else ()
    sequence = draw(tensors((*leading, length), dtype, "sorted", draw(st.booleans())))
    x = draw(tensors((*leading, draw(st.sampled_from((3, 7)))), dtype, value_kinds(dtype, ORDERED_VALUES)))
    kwargs = {"right": draw(st.booleans()), "out_int32": draw(st.booleans())}
    args = (sequence, x) if target is aten.searchsorted.Tensor else (x, sequence)
    varies = [args.index(x), *([] if sequence.constant else [args.index(sequence)])]
    return draw(name_sizes(Call(target, args, kwargs), {draw(st.sampled_from(varies)): [-1]}, least=0))


@strategy(aten.kthvalue.default)
def draw_kthvalue(draw: Draw, target: object) -> Call:
    """Generate calls that request only values: eager's index for equal elements depends on its algorithm."""
    shape = draw(shapes(0, 3, with_zero=False))
    dim, dtype = draw(dims(len(shape))), draw(ORDERED)
    x = draw(tensors(shape, dtype, value_kinds(dtype, ORDERED_VALUES)))
    k = draw(st.integers(1, shape[dim])) if shape else 1
    return draw(name_sizes(Call(target, (x, k, dim, draw(st.booleans())), outputs=(0,)), {0: other_dims(shape, dim)}))


@strategy(aten.median.dim, aten.nanmedian.dim, aten.median.default, aten.nanmedian.default)
def draw_median(draw: Draw, target: object) -> Call:
    """Generate medians of nonempty integer tensors; of empty ones, eager casts NaN to a CPU-dependent integer."""
    dtype = draw(ORDERED)
    x = draw(tensors(draw(shapes(0, 3, with_zero=dtype.is_floating_point)), dtype, value_kinds(dtype, ORDERED_VALUES)))
    if target in (aten.median.default, aten.nanmedian.default):
        return draw(name_sizes(Call(target, (x,))))
    return draw(name_sizes(Call(target, (x, draw(dims(len(x.shape))), draw(st.booleans())), outputs=(0,))))


@strategy(aten.isin.Tensor_Tensor)
def draw_isin(draw: Draw, target: object) -> Call:
    """Generate calls with few elements to compare with, or so many that eager sorts both tensors."""
    dtype = draw(ORDERED)
    kind = value_kinds(dtype, ORDERED_VALUES)
    x, among = (draw(tensors(shape, dtype, kind)) for shape in (draw(shapes(0, 3)), (draw(st.sampled_from((3, 40))),)))
    return draw(name_sizes(Call(target, (x, among), {"invert": draw(st.booleans())}), {0: range(len(x.shape))}))
