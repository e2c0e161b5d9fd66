"""Random calls of views: the same elements under another shape, order or broadcast."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st

from pipeline.testing.calls import Call, Size
from pipeline.testing.strategies.common import (
    Draw,
    Shape,
    any_tensors,
    dim_lists,
    dims,
    dtypes,
    name_sizes,
    other_dims,
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
    return draw(
        name_sizes(
            Call(target, (draw(any_tensors(shape, draw(dtypes))), draw(dims(len(shape))), draw(dims(len(shape)))))
        )
    )


@strategy(aten.t.default)
def draw_t(draw: Draw, target: object) -> Call:
    return draw(name_sizes(Call(target, (draw(any_tensors(draw(shapes(0, 2)), draw(dtypes))),))))


@st.composite
def _expanded_sizes(draw: Draw, shape: Shape) -> list[int]:
    """Generate an expansion of a shape: sizes of 1 grow, -1 leaves a size unchanged, and dims are added in front."""
    front = draw(st.lists(st.integers(0, 3), max_size=2))
    kept = [draw(st.sampled_from([1, 4, 0, -1])) if s == 1 else draw(st.sampled_from([s, -1])) for s in shape]
    return [*front, *kept]


@strategy(aten.expand.default)
def draw_expand(draw: Draw, target: object) -> Call:
    dtype = draw(dtypes)
    if draw(st.booleans()):
        shape, size = draw(st.sampled_from(EXPANDED))
        x = draw(any_tensors(shape, dtype))
        names = [*x.size_names, *(name for each in size if isinstance(each, Size) for name in each.size_names)]
        return Call(target, (x, size), sizes=dict.fromkeys(names, (1, 3, 6)))
    shape = draw(shapes(0, 4))
    return Call(target, (draw(any_tensors(shape, dtype)), draw(_expanded_sizes(shape))))


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
    call: Call = draw(name_sizes(Call(target, (x,) if more is None else (x, draw(more))), least=2))
    return (
        call if all(size.min > 1 for size in call.sizes.values()) else call.with_static_sizes()
    )  # 1 would be squeezed
