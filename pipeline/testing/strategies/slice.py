"""Random calls of operators that slice a tensor: with steps, in reverse, or along a diagonal."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from pipeline.aten.types import aten
from pipeline.testing.calls import Call, Size
from pipeline.testing.strategies.common import (
    Draw,
    any_tensors,
    dim_lists,
    dims,
    dtypes,
    name_sizes,
    other_dims,
    replace_size,
    shapes,
    strategy,
)

BOUNDS = st.none() | st.integers(-7, 7)

DYNAMIC: tuple[tuple[object, ...], ...] = (
    (None, -1, 1),
    (-3, None, 1),
    (2, None, 1),
    (None, None, 2),
    (1, 9223372036854775807, 3),
    (Size("n", offset=-3), None, 1),
    (None, Size("n", offset=-3), 1),
    (1, Size("n", offset=-1), 1),
)
"""Start, end and step of slices of a dynamic dim of size n, which is at least 4."""


@strategy(aten.slice.Tensor)
def draw_slice(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes(1, 4)), draw(dtypes)
    dim = draw(dims(len(shape)))
    if draw(st.booleans()):
        x = draw(any_tensors(replace_size(shape, dim, "n"), dtype))
        return Call(target, (x, dim, *draw(st.sampled_from(DYNAMIC))), sizes={"n": (6, 7, 9)})
    bounds = (draw(BOUNDS), draw(BOUNDS), draw(st.integers(1, 3)))
    return draw(name_sizes(Call(target, (draw(any_tensors(shape, dtype)), dim, *bounds)), {0: other_dims(shape, dim)}))


@strategy(aten.select.int)
def draw_select(draw: Draw, target: object) -> Call:
    shape = draw(shapes(1, 4, with_zero=False))
    dim = draw(dims(len(shape)))
    index = draw(st.integers(-shape[dim], shape[dim] - 1))
    call = Call(target, (draw(any_tensors(shape, draw(dtypes))), dim, index))
    return draw(name_sizes(call, least=min(shape[dim], abs(index) + 1)))


@strategy(aten.unbind.int)
def draw_unbind(draw: Draw, target: object) -> Call:
    shape = draw(shapes(1, 4))
    dim = draw(dims(len(shape)))
    return draw(name_sizes(Call(target, (draw(any_tensors(shape, draw(dtypes))), dim)), {0: other_dims(shape, dim)}))


@strategy(aten.flip.default)
def draw_flip(draw: Draw, target: object) -> Call:
    shape = draw(shapes())
    return draw(name_sizes(Call(target, (draw(any_tensors(shape, draw(dtypes))), draw(dim_lists(len(shape)))))))


@strategy(aten.roll.default)
def draw_roll(draw: Draw, target: object) -> Call:
    shape = draw(shapes())
    axes = draw(dim_lists(len(shape)))
    shifts = [draw(st.integers(-7, 7)) for _ in axes] or [draw(st.integers(-7, 7))]
    return draw(name_sizes(Call(target, (draw(any_tensors(shape, draw(dtypes))), shifts, axes))))


@strategy(aten.diagonal.default)
def draw_diagonal(draw: Draw, target: object) -> Call:
    shape = draw(shapes(2, 4))
    dim1, dim2 = draw(st.permutations(range(len(shape))))[:2]
    dim2 = dim2 - len(shape) if draw(st.booleans()) else dim2
    rest = [d for d in range(len(shape)) if d not in (dim1, dim2 % len(shape))]
    x = draw(any_tensors(shape, draw(dtypes)))
    return draw(name_sizes(Call(target, (x, draw(st.integers(-4, 4)), dim1, dim2)), {0: rest}))


@strategy(aten.unfold.default)
def draw_unfold(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes(1, 3, with_zero=False)), draw(dtypes)
    dim = draw(dims(len(shape)))
    size, step = draw(st.integers(1, shape[dim])), draw(st.integers(1, 3))
    if draw(st.booleans()):
        x = draw(any_tensors(replace_size(shape, dim, "n"), dtype))
        return Call(target, (x, dim, size, step), sizes={"n": (8, 9, 12)})
    return Call(target, (draw(any_tensors(shape, dtype)), dim, size, step))


@strategy(aten.unfold_backward.default)
def draw_unfold_backward(draw: Draw, target: object) -> Call:
    sizes, dtype = list(draw(shapes(1, 3, with_zero=False))), draw(dtypes)
    dim, size, step = draw(dims(len(sizes))), draw(st.integers(1, 7)), draw(st.integers(1, 4))
    at, count, rest = dim % len(sizes), draw(st.integers(1, 4)), draw(st.integers(0, step - 1))
    if draw(st.booleans()):
        given = [*sizes[:at], "n", *sizes[at + 1 :], size]
        sizes[at] = Size("n", step, size - step + rest)  # type: ignore[call-overload]
        return Call(target, (draw(any_tensors(given, dtype)), sizes, dim, size, step), sizes={"n": (2, 3, 5)})
    sizes[at] = (count - 1) * step + size + rest
    batch = [1] * at if draw(st.booleans()) else sizes[:at]
    return Call(target, (draw(any_tensors((*batch, count, *sizes[at + 1 :], size), dtype)), sizes, dim, size, step))


@strategy(aten.as_strided.default)
def draw_as_strided(draw: Draw, target: object) -> Call:
    if draw(st.integers(0, 2)) == 0:
        stride, width = draw(st.sampled_from(([3, 1], [1, 1], [3, 0]))), draw(st.sampled_from((1, 2, 3)))
        return Call(target, (draw(any_tensors(("n", 3), draw(dtypes))), [Size("n"), width], stride), sizes={"n": 2})
    size = draw(shapes(0, 3, with_zero=False, max_size=3))
    stride = [draw(st.integers(0, 3)) for _ in size]
    offset = draw(st.integers(0, 2))
    count = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1
    x = draw(any_tensors((count + draw(st.integers(0, 2)),), draw(dtypes)))
    return Call(target, (x, size, stride, offset or None))


@strategy(aten.resize.default)
def draw_resize(draw: Draw, target: object) -> Call:
    """Generate calls of ``aten.resize`` to a shape with as many elements or fewer: a prefix of the tensor's."""
    if draw(st.integers(0, 2)) == 0:
        size = draw(st.sampled_from(([Size("n", 3)], [3, Size("n")])))  # a smaller one is traced for one n alone
        return Call(target, (draw(any_tensors(("n", 3), draw(dtypes))), size), sizes={"n": 2})
    shape = draw(shapes(0, 3, with_zero=False))
    count = torch.Size(shape).numel()
    size = draw(st.sampled_from([(count,), (1, max(count // 2, 1)), (), (2, count // 2), (0, 3)]))
    return Call(target, (draw(any_tensors(shape, draw(dtypes))), size))
