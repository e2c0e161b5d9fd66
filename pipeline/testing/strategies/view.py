"""Random calls of views: the same elements under another shape, order or broadcast, or a part of the elements."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st

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

aten, prims = torch.ops.aten, torch.ops.prims


@st.composite
def _sizes_with_product(draw: Draw, count: int) -> list[int]:
    """Generate sizes whose product is ``count``."""
    found: list[int] = []
    while count > 1 and len(found) < 4 and draw(st.booleans()):
        divisor = draw(st.sampled_from([d for d in range(1, count + 1) if count % d == 0]))
        found.append(divisor)
        count //= divisor
    return [*found, count]


TIES: tuple[tuple[tuple[Any, ...], tuple[Any, ...]], ...] = (
    (("n", 6), (Size("n"), 2, 3)),
    (("n", 6), (Size("n", 2), 3)),
    (("n", 2, 3), (Size("n"), -1)),
    (("n", "m", 6), (Size("n"), Size("m"), 3, 2)),
    (("n", "m", 6), (Size("n*m"), 6)),
    (("n", "m", 6), (3, Size("n"), Size("m", 2))),
    (("n", 4, "m"), (Size("n", 4), 1, Size("m"))),
    (("n", "m"), (-1,)),
    (("n", "m", "k"), (Size("n"), Size("m*k"))),
    (("n", 1, "m"), (1, Size("n"), Size("m"))),
)
"""Pairs of a shape with dynamic sizes, and a shape to which such a tensor can be viewed."""


@strategy(aten.view.default, aten.reshape.default, aten._reshape_copy.default, aten._unsafe_view.default)
def draw_view(draw: Draw, target: object) -> Call:
    dtype = draw(dtypes)
    if draw(st.booleans()):
        given, size = draw(st.sampled_from(TIES))
        x = draw(any_tensors(given, dtype))
        return Call(target, (x, size), sizes=dict.fromkeys(x.size_names, (1, 3, 6)))
    shape = draw(shapes())
    size = draw(_sizes_with_product(math.prod(shape)))
    if draw(st.booleans()) and 0 not in size:
        size[draw(st.integers(0, len(size) - 1))] = -1
    return Call(target, (draw(any_tensors(shape, dtype)), size))


@strategy(aten.flatten.using_ints)
def draw_flatten(draw: Draw, target: object) -> Call:
    shape = draw(shapes())
    start = draw(st.integers(0, max(len(shape) - 1, 0)))
    end = draw(st.integers(start, max(len(shape) - 1, 0)))
    end = end - len(shape) if draw(st.booleans()) and shape else end
    return draw(name_sizes(Call(target, (draw(any_tensors(shape, draw(dtypes))), start, end))))


@strategy(aten.unflatten.int)
def draw_unflatten(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes(1, 3, with_zero=False)), draw(dtypes)
    dim = draw(dims(len(shape)))
    sizes = draw(_sizes_with_product(shape[dim]))
    sizes = [*sizes[:-1], -1] if draw(st.booleans()) else sizes
    return draw(name_sizes(Call(target, (draw(any_tensors(shape, dtype)), dim, sizes)), {0: other_dims(shape, dim)}))


@strategy(aten.permute.default)
def draw_permute(draw: Draw, target: object) -> Call:
    shape = draw(shapes(0, 8, max_numel=300))
    order = draw(st.permutations(range(len(shape))))
    signed = [d - len(shape) if draw(st.booleans()) else d for d in order]
    return draw(name_sizes(Call(target, (draw(any_tensors(shape, draw(dtypes))), signed))))


@strategy(aten.transpose.int)
def draw_transpose(draw: Draw, target: object) -> Call:
    shape = draw(shapes())
    x, first, second = draw(any_tensors(shape, draw(dtypes))), draw(dims(len(shape))), draw(dims(len(shape)))
    return draw(name_sizes(Call(target, (x, first, second))))


@strategy(aten.expand.default)
def draw_expand(draw: Draw, target: object) -> Call:
    """Generate expansions of a shape: sizes of 1 grow, -1 leaves a size unchanged, and dims are added in front."""
    dtype = draw(dtypes)
    if draw(st.booleans()):
        shape, size = draw(st.sampled_from(EXPANDED))
        x = draw(any_tensors(shape, dtype))
        names = [*x.size_names, *(name for each in size if isinstance(each, Size) for name in each.size_names)]
        return Call(target, (x, size), sizes=dict.fromkeys(names, (1, 3, 6)))
    shape, front = draw(shapes(0, 4)), draw(st.lists(st.integers(0, 3), max_size=2))
    kept = [draw(st.sampled_from([1, 4, 0, -1])) if s == 1 else draw(st.sampled_from([s, -1])) for s in shape]
    return Call(target, (draw(any_tensors(shape, dtype)), [*front, *kept]))


EXPANDED: tuple[tuple[tuple[Any, ...], tuple[Any, ...]], ...] = (
    (("n", 1), (Size("n"), 4)),
    (("n", 1), (2, -1, 3)),
    ((1, 3), (Size("n"), 3)),
    ((1, "m"), (Size("n"), -1)),
    (("n", 1, "m"), (-1, Size("m"), -1)),
    (("n", "m"), (Size("n"), Size("m"))),
)


@strategy(prims.broadcast_in_dim.default)
def draw_broadcast_in_dim(draw: Draw, target: object) -> Call:
    dtype = draw(dtypes)
    if draw(st.booleans()):
        return Call(target, (draw(any_tensors(("n", 1), dtype)), (Size("n"), 2, 3), (0, 2)), sizes={"n": (1, 3, 6)})
    shape = draw(shapes(0, 4, with_zero=False))
    places = sorted(draw(st.permutations(range(4)))[: len(shape)])
    wide = {place: draw(st.sampled_from([s, 3])) if s == 1 else s for place, s in zip(places, shape, strict=True)}
    return Call(target, (draw(any_tensors(shape, dtype)), [wide.get(i, 2) for i in range(4)], places))


@strategy(aten.unsqueeze.default)
def draw_unsqueeze(draw: Draw, target: object) -> Call:
    shape = draw(shapes())
    return draw(name_sizes(Call(target, (draw(any_tensors(shape, draw(dtypes))), draw(dims(len(shape) + 1))))))


@strategy(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def draw_squeeze(draw: Draw, target: Any) -> Call:
    shape = draw(shapes())
    more = {aten.squeeze.dim: dims(len(shape)), aten.squeeze.dims: dim_lists(len(shape))}.get(target)
    x = draw(any_tensors(shape, draw(dtypes)))
    return draw(name_sizes(Call(target, (x,) if more is None else (x, draw(more))), least=2))  # 1 would be squeezed


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
