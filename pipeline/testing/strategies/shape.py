"""Random calls of operators that join, split, repeat or create tensors, some too large to become constants."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from pipeline.aten.types import Target, aten
from pipeline.testing.calls import Call, Size, TensorSpec
from pipeline.testing.strategies.common import (
    FLOATS,
    INTS,
    Draw,
    any_tensors,
    dims,
    dtypes,
    name_sizes,
    numbers,
    other_dims,
    replace_size,
    shapes,
    strategy,
    tensors,
)


@strategy(aten.cat.default)
def draw_cat(draw: Draw, target: object) -> Call:
    shape = draw(shapes(1, 4))
    dim, mixed = draw(dims(len(shape))), draw(st.booleans())
    dtype = draw(dtypes)
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        own = replace_size(shape, dim, draw(st.integers(0, 3)))
        parts.append(draw(any_tensors(own, draw(dtypes) if mixed else dtype)))
    if draw(st.integers(0, 3)) == 0:
        parts.insert(draw(st.integers(0, len(parts))), draw(any_tensors((0,), dtype)))
    if draw(st.booleans()) and len(shape) > 1:
        place = (dim + 1) % len(shape)
        parts = [draw(any_tensors(replace_size(p.shape, place, "n"), p.dtype)) for p in parts if p.shape != (0,)]
        return Call(target, (parts, dim), sizes={"n": (1, 3, 6)})
    if draw(st.booleans()):
        given = [(p, n) for p, n in zip(parts, "nm", strict=False) if p.shape != (0,)]
        parts = [draw(any_tensors(replace_size(p.shape, dim, n), p.dtype)) for p, n in given]
        return Call(target, (parts, dim), sizes={n: (1, 3, 6) for p in parts for n in p.size_names})
    return Call(target, (parts, dim))


@strategy(aten.stack.default)
def draw_stack(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes(0, 4)), draw(dtypes)
    parts = [draw(any_tensors(shape, dtype)) for _ in range(draw(st.integers(1, 3)))]
    return draw(name_sizes(Call(target, (parts, draw(dims(len(shape) + 1))))))


@st.composite
def _sizes_with_sum(draw: Draw, total: int) -> list[int]:
    """Generate sizes whose sum is ``total``."""
    found: list[int] = []
    while total > 0 and len(found) < 4 and draw(st.booleans()):
        found.append(draw(st.integers(0, total)))
        total -= found[-1]
    return [*found, total]


@strategy(aten.split_with_sizes.default, aten.split.sizes, aten.unsafe_split_with_sizes.default)
def draw_split_with_sizes(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes(1, 4)), draw(dtypes)
    dim = draw(dims(len(shape)))
    if draw(st.integers(0, 3)) == 0:
        x = draw(any_tensors(replace_size(shape, dim, "n"), dtype))
        return Call(target, (x, [2, Size("n", offset=-2)], dim), sizes={"n": (4, 5, 8)})
    call = Call(target, (draw(any_tensors(shape, dtype)), draw(_sizes_with_sum(shape[dim])), dim))
    return draw(name_sizes(call, {0: other_dims(shape, dim)}))


@strategy(aten.split.Tensor, aten.unsafe_split.Tensor, aten.chunk.default)
def draw_split(draw: Draw, target: object) -> Call:
    shape = draw(shapes(1, 4, with_zero=False))
    dim = draw(dims(len(shape)))
    call = Call(target, (draw(any_tensors(shape, draw(dtypes))), draw(st.integers(1, 4)), dim))
    return draw(name_sizes(call, {0: other_dims(shape, dim)}))


@strategy(aten.repeat.default)
def draw_repeat(draw: Draw, target: object) -> Call:
    shape = draw(shapes(0, 3))
    repeats = [draw(st.integers(0, 3)) for _ in range(len(shape) + draw(st.integers(0, 2)))]
    call = Call(target, (draw(any_tensors(shape, draw(dtypes))), repeats))
    if draw(st.integers(0, 3)) == 0:
        x = draw(any_tensors((1, 3), call.specs[0].dtype))
        return Call(target, (x, [Size("n"), 2]), sizes={"n": (1, 3, 6)})
    return draw(name_sizes(call)) if 0 not in repeats and 0 not in shape else call


LARGE = (300, 300)
"""A shape with too many elements for constant folding."""

SIZES = {"n": (1, 3, 8)}


@strategy(aten.full.default)
def draw_full(draw: Draw, target: object) -> Call:
    dtype = draw(dtypes)
    value = draw(numbers(dtype))
    chosen = {} if draw(st.booleans()) else {"dtype": dtype}
    if draw(st.booleans()):
        return Call(target, (LARGE, value), chosen)
    shape = draw(st.sampled_from([("n", 3), (2, "n"), ("n",), ("n", 1, "n")]))
    return Call(target, ([Size(s) if isinstance(s, str) else s for s in shape], value), chosen, SIZES)


@strategy(aten.new_full.default)
def draw_new_full(draw: Draw, target: object) -> Call:
    dtype = draw(dtypes)
    spec = draw(tensors(("n", 2), dtype))
    return Call(target, (spec, [draw(st.sampled_from([Size("n", 2), 3])), 2], draw(numbers(dtype))), sizes=SIZES)


@strategy(aten.fill.Tensor)
def draw_fill(draw: Draw, target: object) -> Call:
    dtype = draw(dtypes)
    return draw(name_sizes(Call(target, (draw(tensors(draw(shapes()), dtype)), draw(tensors((), dtype))))))


@strategy(aten.scalar_tensor.default)
def draw_scalar_tensor(draw: Draw, target: object) -> Call:
    dtype = draw(st.sampled_from((*FLOATS, *INTS, torch.uint8)))
    return Call(target, (Size("n"),), {"dtype": dtype}, SIZES)


@strategy(aten.arange.start_step, aten.arange.start, aten.arange.default)
def draw_arange(draw: Draw, target: Target) -> Call:
    """Generate ranges with integer steps or, in floats, multiples of 1/4: devices round sums of other steps
    differently. For floats with a dynamic size, PyTorch knows the length only if the step is 1."""
    dtype = draw(st.sampled_from((torch.int64, torch.int32, torch.float32, torch.float16)))
    large = draw(st.booleans())
    end: object = 70000 if large else Size("n", draw(st.sampled_from((1, 2, 3))))
    start = draw(st.sampled_from((0, 1, -2)))
    steps = ((1, 0.25, 2) if large else (1,)) if dtype.is_floating_point else (1, 2, 3)
    step = draw(st.sampled_from(steps))
    dtype = torch.float32 if large and dtype == torch.float16 else dtype
    args = {aten.arange.start_step: (start, end, step), aten.arange.start: (start, end)}.get(target, (end,))
    return Call(target, args, {"dtype": dtype}, {} if large else SIZES)


@strategy(
    *(aten.empty.memory_format, aten.empty_permuted.default, aten.empty_strided.default),
    *(aten.empty_like.default, aten.new_empty.default, aten.new_empty_strided.default),
)
def draw_empty(draw: Draw, target: Target) -> Call:
    """Generate calls that create tensors without elements, since the elements of ``empty`` are undefined."""
    dtype, shape = draw(dtypes), draw(st.sampled_from(([0, Size("n")], [Size("n"), 0])))
    layout = [[0, 1]] if "permuted" in str(target) else [[1, 1]] if "strided" in str(target) else []
    if target._schema.arguments[0].name == "size":
        return Call(target, (shape, *layout), {"dtype": dtype}, SIZES)
    x = TensorSpec(("n", 0), dtype)
    return Call(target, (x,) if target is aten.empty_like.default else (x, shape, *layout), sizes=SIZES)


@strategy(aten.native_dropout.default)
def draw_native_dropout(draw: Draw, target: object) -> Call:
    spec = draw(tensors(draw(shapes()), draw(st.sampled_from(FLOATS))))
    return draw(name_sizes(Call(target, (spec, draw(st.sampled_from((0.0, 0.5))), False))))
