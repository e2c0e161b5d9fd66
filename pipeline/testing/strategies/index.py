"""Random calls of operators that select, write or reduce elements by indices and masks, or look up rows of a table."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st

from pipeline.aten.types import Leaf, aten
from pipeline.testing.calls import Call, Size, TensorSpec
from pipeline.testing.strategies.common import (
    FLOATS,
    INTS,
    Draw,
    Shape,
    any_tensors,
    broadcast_shapes,
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
)


@st.composite
def _index_tensors(draw: Draw, shape: Shape, *, distinct: bool = False) -> list[Leaf]:
    """Generate index tensors for some dims and None for all other dims; the tensors broadcast together. If the indices
    are ``distinct``, no element is indexed twice.

    If there are several index tensors, none has rank 0, for which torch 2.13 predicts a wrong shape.
    """
    count = draw(st.integers(1, min(len(shape), 3)))
    axes = sorted(draw(st.permutations(range(len(shape))))[:count])
    parts = [part or (1,) * (count > 1) for part in draw(broadcast_shapes(count, 2, with_zero=False))]
    dtype = draw(st.sampled_from([torch.int64, torch.int64, torch.int32]))
    found = dict[int, TensorSpec]()
    if distinct:  # the same distinct indices into each of these dims
        constant, places = draw(st.booleans()), range(min(shape[a] for a in axes))
        for a in axes:
            signed = [i - shape[a] if i % 2 else i for i in reversed(places)]
            found[a] = TensorSpec((len(places),), dtype, ("given", signed), constant)
    else:
        for a, part in zip(axes, parts, strict=True):
            found[a] = draw(tensors(part, dtype, ("index", shape[a]), draw(st.booleans())))
    return [found.get(a) for a in range(axes[-1] + 1)]


@strategy(aten.index.Tensor)
def draw_index(draw: Draw, target: object) -> Call:
    shape = draw(shapes(1, 4, with_zero=False))
    indices = draw(_index_tensors(shape))
    call = Call(target, (draw(any_tensors(shape, draw(dtypes))), indices))
    free = [d for d in range(len(shape)) if d >= len(indices) or indices[d] is None]
    return draw(name_sizes(call, {0: free}))


@strategy(aten.index_put.default)
def draw_index_put(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes(1, 4, with_zero=False)), draw(dtypes)
    x = draw(tensors(shape, dtype))
    if draw(st.booleans()):
        place = draw(st.integers(0, len(shape) - 1))
        covered = shape[place : draw(st.integers(place + 1, len(shape)))]
        rest = shape[place + len(covered) :]
        given = draw(st.sampled_from([(), (1,), rest, (1, *rest)])) if rest else draw(st.sampled_from([(), (1,)]))
        mask = draw(tensors(covered, torch.bool))
        accumulate = draw(st.booleans()) and dtype.is_floating_point
        if draw(st.booleans()):  # a value for each element that the mask selects
            picks = tuple(mask.create_tensor({}).flatten().tolist())
            mask = TensorSpec(covered, torch.bool, ("given", picks))
            given = (*draw(st.sampled_from([shape[:place], ()])), sum(picks), *rest)
        call = Call(target, (x, [*[None] * place, mask], draw(tensors(given, dtype)), accumulate))
        free = [d for d in range(len(shape)) if not place <= d < place + len(covered)]
        return draw(name_sizes(call, {0: free})) if given in ((), (1,)) and free else call
    accumulate = draw(st.booleans()) and dtype not in (torch.bool, torch.uint8, torch.int8)
    indices = draw(_index_tensors(shape, distinct=not accumulate))
    free = [d for d in range(len(shape)) if d >= len(indices) or indices[d] is None]
    places = [None if i is None else torch.zeros(i.shape, dtype=torch.int64) for i in indices]
    whole = tuple(aten.index.Tensor(torch.empty(shape), places).shape)
    values = draw(tensors(draw(st.sampled_from([(), whole, whole[1:]])), dtype, "small" if accumulate else "normal"))
    call = Call(target, (x, indices, values, accumulate))
    return draw(name_sizes(call, {0: free})) if values.shape == () else call


@strategy(aten.index_select.default)
def draw_index_select(draw: Draw, target: object) -> Call:
    shape = draw(shapes(0, 4, with_zero=False))
    dim = draw(dims(len(shape)))
    count = (draw(st.integers(0, 4)),) if shape else (1,)
    index = draw(tensors(count, draw(ints), ("below", shape[dim] if shape else 1), draw(st.booleans())))
    call = Call(target, (draw(any_tensors(shape, draw(dtypes))), dim, index))
    return draw(name_sizes(call, {0: other_dims(shape, dim)}))


@strategy(aten.gather.default)
def draw_gather(draw: Draw, target: object) -> Call:
    shape = draw(shapes(0, 4, with_zero=False))
    dim = draw(dims(len(shape)))
    size = shape[dim] if shape else 1
    own = [draw(st.integers(0, 4)) if d == dim % len(shape) else draw(st.integers(1, s)) for d, s in enumerate(shape)]
    index = draw(tensors(own, torch.int64, ("below", size), draw(st.booleans())))
    return _name_equal_dims(draw, Call(target, (draw(any_tensors(shape, draw(dtypes))), dim, index)))


@strategy(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def draw_index_fill(draw: Draw, target: object) -> Call:
    """Generate a fill of some indices, which count from either end of the dim."""
    shape, dtype = draw(shapes(0, 4, with_zero=False)), draw(dtypes)
    dim = draw(dims(len(shape)))
    count = draw(st.sampled_from([(), (3,), (0,)])) if shape else (1,)
    index = draw(tensors(count, torch.int64, ("index", shape[dim] if shape else 1), draw(st.booleans())))
    value = draw(tensors((), dtype)) if target is aten.index_fill.int_Tensor else draw(st.sampled_from([0, 1, True]))
    call = Call(target, (draw(any_tensors(shape, dtype)), dim, index, value))
    return draw(name_sizes(call, {0: other_dims(shape, dim)}))


@strategy(aten.one_hot.default)
def draw_one_hot(draw: Draw, target: object) -> Call:
    classes = draw(st.integers(1, 5))
    return draw(name_sizes(Call(target, (draw(tensors(draw(shapes(0, 3)), torch.int64, ("below", classes))), classes))))


@strategy(aten.masked_scatter.default)
def draw_masked_scatter(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes(0, 4, with_zero=False)), draw(dtypes)
    if draw(st.booleans()):
        mask = draw(tensors(draw(st.sampled_from([("n", 3), ("n", 1), (3,)])), torch.bool))
        given = (draw(any_tensors(("n", 3), dtype)), mask, draw(any_tensors((27,), dtype)))
        return Call(target, given, sizes={"n": (1, 3, 9)})
    part = tuple(1 if draw(st.booleans()) else s for s in shape)[draw(st.integers(0, len(shape))) :]
    if draw(st.integers(0, 3)) == 0:
        mask, source = draw(tensors(shape, torch.bool)), draw(tensors(shape, dtype))
        return Call(target, (draw(any_tensors(part, dtype)), mask, source))
    source = draw(tensors((math.prod(shape) + draw(st.integers(0, 2)),), dtype))
    return Call(target, (draw(any_tensors(shape, dtype)), draw(tensors(part, torch.bool)), source))


@strategy(aten.nonzero.default, aten.nonzero_numpy.default, aten.where.default)
def draw_nonzero(draw: Draw, target: object) -> Call:
    return draw(name_sizes(Call(target, (draw(tensors(draw(shapes(1, 4)), draw(dtypes), "small")),))))


@strategy(aten.masked_select.default)
def draw_masked_select(draw: Draw, target: object) -> Call:
    x, mask = draw(broadcast_shapes().filter(lambda parts: len(parts[1]) > 0))
    return draw(name_sizes(Call(target, (draw(any_tensors(x, draw(dtypes))), draw(tensors(mask, torch.bool))))))


@strategy(aten.put.default)
def draw_put(draw: Draw, target: object) -> Call:
    """Generate calls of ``aten.put`` that add values to elements, given by indices into the flattened tensor."""
    shape, dtype = draw(shapes(1, 3, with_zero=False)), draw(floats)
    index = draw(tensors((2, 2), torch.int64, ("index", math.prod(shape))))
    return Call(target, (draw(tensors(shape, dtype)), index, draw(tensors((2, 2), dtype, "small")), True))


@strategy(aten.embedding.default)
def draw_embedding(draw: Draw, target: object) -> Call:
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(0, 4))
    weight = draw(tensors((rows, columns), draw(dtypes), constant=draw(st.booleans())))
    index = draw(tensors(draw(shapes(0, 3)), draw(ints), ("below", rows)))
    padding = draw(st.sampled_from([(), (0,), (-1,)]))
    return draw(name_sizes(Call(target, (weight, index, *padding)), {1: range(len(index.shape))}))


@strategy(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def draw_embedding_bag(draw: Draw, target: object) -> Call:
    rows, count, mode = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(0, 2))
    dtype, last = draw(floats), draw(st.booleans())
    starts = sorted(draw(st.lists(st.integers(0, count), max_size=3)))
    starts = [0, *starts, *([count] if last else [])]
    weight = draw(tensors((rows, draw(st.integers(1, 3))), dtype, constant=draw(st.booleans())))
    index = draw(tensors((count,), torch.int64, ("below", rows)))
    offsets = draw(tensors((len(starts),), torch.int64, ("given", starts)))
    scale = draw(st.none() | tensors((count,), dtype)) if mode == 0 else None
    padding = draw(st.sampled_from([-1, 0]))
    if draw(st.integers(0, 2)) == 0:
        index = draw(tensors(("n",), torch.int64, ("below", rows)))
        offsets = draw(tensors((2,), torch.int64, ("given", [0, 1])))
        return Call(target, (weight, index, offsets, False, mode), sizes={"n": (1, 3, 6)}, outputs=(0,))
    return Call(target, (weight, index, offsets, False, mode, False, scale, last, padding), outputs=(0,))


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


@strategy(aten.scatter.value, aten.scatter.value_reduce)
def draw_scatter_value(draw: Draw, target: object) -> Call:
    """Generate calls that write one number to all given indices, or add or multiply it there."""
    reduces = target is aten.scatter.value_reduce
    shape, dtype = draw(shapes(0, 4, with_zero=False)), draw(REDUCIBLE if reduces else dtypes)
    dim = draw(dims(len(shape)))
    index, _ = draw(_index_tensor_and_shape(shape, dim, distinct=False))
    value = 2 if reduces else draw(st.sampled_from([1, 0, 2.5] if dtype.is_floating_point else [1, 0]))
    kwargs = {"reduce": draw(st.sampled_from(["add", "multiply"]))} if reduces else {}
    return _name_equal_dims(draw, Call(target, (draw(tensors(shape, dtype)), dim, index, value), kwargs))


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
