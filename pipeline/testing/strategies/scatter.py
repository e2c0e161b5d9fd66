"""Random calls of operators that write elements by index, or that reduce elements with equal indices."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from pipeline.aten.types import aten
from pipeline.testing.calls import Call, Size
from pipeline.testing.strategies.common import (
    FLOATS,
    INTS,
    Draw,
    Shape,
    dims,
    dtypes,
    name_sizes,
    other_dims,
    replace_size,
    shapes,
    strategy,
    tensors,
)


@st.composite
def _index_tensor_and_shape(draw: Draw, shape: Shape, dim: int, *, distinct: bool) -> tuple[Any, Shape]:
    """Generate an index tensor for a dim, and its shape; ``distinct`` indices repeat no element along the dim."""
    if not shape:
        return draw(tensors((), torch.int64, "zeros")), ()
    axis, size = dim % len(shape), shape[dim]
    own = [size if d == axis else draw(st.integers(1, s)) for d, s in enumerate(shape)]
    if not distinct:
        own[axis] = draw(st.integers(1, 5))
        return draw(tensors(own, torch.int64, ("below", size), draw(st.booleans()))), tuple(own)
    own[axis] = draw(st.integers(1, size))
    first = torch.arange(own[axis]).add(draw(st.integers(0, 3))).remainder(size)
    lines = first.reshape([-1 if d == axis else 1 for d in range(len(shape))]).expand(own)
    return draw(tensors(own, torch.int64, ("given", lines.tolist()), draw(st.booleans()))), tuple(own)


@st.composite
def _same_or_larger_shape(draw: Draw, shape: Shape) -> Shape:
    """Generate a shape whose sizes are those of ``shape``, or some of them larger by one."""
    return tuple(s + draw(st.integers(0, 1)) for s in shape) if draw(st.booleans()) else shape


@strategy(aten.scatter.src)
def draw_scatter(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes(0, 4, with_zero=False)), draw(dtypes)
    dim = draw(dims(len(shape)))
    if draw(st.booleans()):
        lines = draw(st.sampled_from([("n", 4), ("n", "m"), (2, "n")]))
        index = draw(tensors(lines, torch.int64, "permutation"))
        given = (draw(tensors(lines, dtype)), 1, index, draw(tensors(lines, dtype)))
        return Call(target, given, sizes={n: (1, 3, 6) for n in lines if isinstance(n, str)})
    index, own = draw(_index_tensor_and_shape(shape, dim, distinct=True))
    source = draw(tensors(draw(_same_or_larger_shape(own)), dtype))
    return Call(target, (draw(tensors(shape, dtype)), dim, index, source))


@strategy(aten.scatter.value)
def draw_scatter_value(draw: Draw, target: object) -> Call:
    """Generate calls of ``scatter.value``, which write one number to all given indices."""
    shape, dtype = draw(shapes(0, 4, with_zero=False)), draw(dtypes)
    dim = draw(dims(len(shape)))
    index, own = draw(_index_tensor_and_shape(shape, dim, distinct=False))
    value = draw(st.sampled_from([1, 0, 2.5] if dtype.is_floating_point else [1, 0]))
    rest = [d for d in range(len(shape)) if d != dim % len(shape) and own[d] == shape[d]]
    return draw(name_sizes(Call(target, (draw(tensors(shape, dtype)), dim, index, value)), {0: rest, 1: rest}))


REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")
REDUCIBLE = st.sampled_from((*FLOATS, *INTS))


@strategy(aten.scatter_add.default, aten.scatter_reduce.two, aten.scatter.reduce)
def draw_scatter_reduce(draw: Draw, target: object) -> Call:
    """Generate calls of ``scatter_add``, ``scatter_reduce`` and ``scatter.reduce`` with a source tensor."""
    shape, dtype = draw(shapes(0, 4, with_zero=False)), draw(REDUCIBLE)
    dim = draw(dims(len(shape)))
    index, own = draw(_index_tensor_and_shape(shape, dim, distinct=False))
    source = draw(tensors(draw(_same_or_larger_shape(own)), dtype, "small"))
    args = [draw(tensors(shape, dtype)), dim, index, source]
    if target is aten.scatter_reduce.two:
        args.append(draw(st.sampled_from(REDUCTIONS)))
        return _name_equal_dims(draw, Call(target, args, {"include_self": draw(st.booleans())}))
    kwargs = {"reduce": draw(st.sampled_from(["add", "multiply"]))} if target is aten.scatter.reduce else {}
    return _name_equal_dims(draw, Call(target, args, kwargs))


@strategy(aten.scatter.value_reduce)
def draw_scatter_value_reduce(draw: Draw, target: object) -> Call:
    """Generate calls of ``scatter.value_reduce``, which add or multiply one number at all given indices."""
    shape, dtype = draw(shapes(0, 3, with_zero=False)), draw(REDUCIBLE)
    dim = draw(dims(len(shape)))
    index, _ = draw(_index_tensor_and_shape(shape, dim, distinct=False))
    reduce = draw(st.sampled_from(["add", "multiply"]))
    return _name_equal_dims(draw, Call(target, (draw(tensors(shape, dtype)), dim, index, 2), {"reduce": reduce}))


def _name_equal_dims(draw: Draw, call: Call) -> Call:
    """Make sizes of a call dynamic (see `name_sizes`), except in its ``dim`` and where its tensors' sizes differ."""
    x, index, *source = call.specs
    rank, dim = len(x.shape), call.args[1]
    alike = [d for d in range(rank) if d != dim % rank and all(s.shape[d] == x.shape[d] for s in (index, *source))]
    return draw(name_sizes(call, dict.fromkeys(range(len(call.specs)), alike)))


@strategy(aten.index_reduce.default)
def draw_index_reduce(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes(1, 4, with_zero=False)), draw(REDUCIBLE)
    dim, count = draw(dims(len(shape))), draw(st.integers(1, 5))
    index = draw(tensors((count,), torch.int64, ("below", shape[dim]), draw(st.booleans())))
    source = draw(tensors(replace_size(shape, dim, count), dtype, "small"))
    reduce = draw(st.sampled_from(REDUCTIONS[1:]))
    given = (draw(tensors(shape, dtype)), dim, index, source, reduce)
    rest = other_dims(shape, dim)
    return draw(name_sizes(Call(target, given, {"include_self": draw(st.booleans())}), {0: rest, 2: rest}))


@strategy(aten.index_copy.default)
def draw_index_copy(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes(1, 4, with_zero=False)), draw(dtypes)
    dim = draw(dims(len(shape)))
    size = shape[dim]
    count = draw(st.integers(0, size))
    index = draw(tensors((count,), torch.int64, ("given", list(range(size))[::-1][:count]), draw(st.booleans())))
    source = draw(tensors(replace_size(shape, dim, count), dtype))
    rest = other_dims(shape, dim)
    return draw(name_sizes(Call(target, (draw(tensors(shape, dtype)), dim, index, source)), {0: rest, 2: rest}))


@strategy(aten.select_scatter.default)
def draw_select_scatter(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes(1, 4, with_zero=False)), draw(dtypes)
    dim = draw(dims(len(shape)))
    axis = dim % len(shape)
    index = draw(st.integers(-shape[dim], shape[dim] - 1))
    source = draw(tensors([s for d, s in enumerate(shape) if d != axis], dtype))
    call = Call(target, (draw(tensors(shape, dtype)), source, dim, index))
    if draw(st.booleans()):
        own = [d - (d > axis) for d in range(len(shape)) if d > axis]
        return draw(name_sizes(call, {0: [d for d in range(len(shape)) if d > axis], 1: own}))
    return draw(name_sizes(call, {0: [axis], 1: []}, least=min(shape[dim], abs(index) + 1)))


@strategy(aten.slice_scatter.default)
def draw_slice_scatter(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes(1, 4, with_zero=False)), draw(dtypes)
    dim, bound = draw(dims(len(shape))), st.none() | st.integers(-5, 5)
    start, end, step = draw(bound), draw(bound), draw(st.integers(1, 3))
    if draw(st.integers(0, 2)) == 0:
        given = (draw(tensors(("n", 3), dtype)), draw(tensors((Size("n", offset=-1), 3), dtype)))
        return Call(target, (*given, 0, 1, None), sizes={"n": (4, 5, 8)})
    part = torch.empty(shape)[(slice(None),) * (dim % len(shape)) + (slice(start, end, step),)].shape
    rest = other_dims(shape, dim)
    call = Call(target, (draw(tensors(shape, dtype)), draw(tensors(part, dtype)), dim, start, end, step))
    return draw(name_sizes(call, {0: rest, 1: rest}))


@strategy(aten.diagonal_scatter.default)
def draw_diagonal_scatter(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes(2, 4, with_zero=False)), draw(dtypes)
    dim1, dim2 = draw(st.permutations(range(len(shape))))[:2]
    offset = draw(st.integers(-4, 4))
    if draw(st.integers(0, 2)) == 0:
        given = draw(tensors(("n", 4, 3), dtype)), draw(tensors(("n", 2), dtype))
        return Call(target, (*given, draw(st.sampled_from([1, -2])), 1, 2), sizes={"n": (1, 3, 6)})
    part = torch.empty(shape).diagonal(offset, dim1, dim2).shape
    return Call(target, (draw(tensors(shape, dtype)), draw(tensors(part, dtype)), offset, dim1, dim2))
