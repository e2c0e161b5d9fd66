"""Building blocks of Hypothesis strategies: shapes, dims, dtypes, numbers, tensors, and names for dynamic sizes.

A strategy first generates a call with static shapes, and then replaces some sizes by names (``name_sizes``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from attrs import evolve
from hypothesis import strategies as st

from pipeline.aten.types import Target
from pipeline.testing.calls import Call, TensorSpec

Shape = tuple[int, ...]
Draw = st.DrawFn

FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)
INTS: Final = (torch.int64, torch.int32)
SMALL_INTS: Final = (torch.int8, torch.uint8)
DTYPES: Final = (*FLOATS, *INTS, torch.bool, *SMALL_INTS)

NAMES: Final = ("n", "m", "k")
"""The names of dynamic sizes, in the order in which ``name_sizes`` assigns them."""

floats = st.sampled_from(FLOATS)
ints = st.sampled_from(INTS)
dtypes = st.sampled_from((*FLOATS, *INTS, *FLOATS, torch.int64, torch.bool, *SMALL_INTS))

FLOAT_VALUES: Final = ("normal", "special", "small", "positive", "special", "unit", "large")
ORDERED_VALUES: Final = ("extreme", "small", "normal", "extreme", "special", "large")
"""Kinds of float values for operators that sort or compare: some have NaN and both infinities in one row, next to the
greatest finite numbers."""
INT_VALUES: Final = ("small", "normal", "special", "large")
seeds = st.integers(0, 99)


@st.composite
def shapes(
    draw: Draw, min_rank: int = 0, max_rank: int = 5, *, with_zero: bool = True, max_size: int = 5, max_numel: int = 400
) -> Shape:
    """Generate a shape with some sizes of 1, sometimes 0 (``with_zero``), and at most ``max_numel`` elements."""
    ranks = [r for r in (2, 3, 1, 4, 0, 2, 3, 4, 3, *range(5, max_rank + 1)) if min_rank <= r <= max_rank]
    rank = draw(st.sampled_from(ranks))
    drawn = st.sampled_from([s for s in (2, 3, 1, *range(4, max_size + 1)) if s <= max_size])
    shape = draw(st.tuples(*[drawn] * rank))
    empty = draw(st.integers(0, 11)) == 11 and with_zero and rank > 0
    place = draw(st.integers(0, rank - 1)) if empty else -1
    sizes = [0 if i == place else s for i, s in enumerate(shape)]
    while math.prod(sizes) > max_numel:  # halve the largest
        largest = sizes.index(max(sizes))
        sizes[largest] = (sizes[largest] + 1) // 2
    return tuple(sizes)


@st.composite
def broadcast_shapes(draw: Draw, count: int = 2, max_rank: int = 5, *, with_zero: bool = True) -> tuple[Shape, ...]:
    """Generate shapes that broadcast: one is the full shape, all others have sizes of 1 or lack leading dims."""
    whole = draw(shapes(0, max_rank, with_zero=with_zero))
    parts = [draw(_broadcastable_shape(whole)) for _ in range(count - 1)]
    parts.insert(draw(st.integers(0, count - 1)), whole)
    return tuple(parts)


@st.composite
def _broadcastable_shape(draw: Draw, full_shape: Shape) -> Shape:
    form = draw(st.sampled_from(["same", "shorter", "ones", "shorter", "both"]))
    starts = [*range(1, len(full_shape)), 1, len(full_shape)] if form in ("shorter", "both") and full_shape else [0]
    start = draw(st.sampled_from(starts))
    drawn = st.booleans() if form in ("ones", "both") else st.just(False)
    ones = draw(st.tuples(*[drawn] * len(full_shape)))
    return tuple(1 if one else size for size, one in zip(full_shape, ones, strict=True))[start:]


def dims(rank: int) -> st.SearchStrategy[int]:
    """Return a strategy that generates a dim, counted from either end; a tensor of rank 0 has the dims 0 and -1."""
    return st.integers(-max(rank, 1), max(rank, 1) - 1)


def dim_lists(rank: int, min_size: int = 0) -> st.SearchStrategy[list[int]]:
    """Return a strategy that generates lists of distinct dims, each counted from either end."""
    some = st.lists(st.integers(0, rank - 1), min_size=min_size, max_size=rank, unique=True) if rank else st.just([])
    signed = some.flatmap(lambda chosen: st.tuples(*[st.sampled_from([d, d - rank]) for d in chosen]))
    return signed.map(list)


def other_dims(shape: Sequence[object], dim: int) -> list[int]:
    """Return all dims of a shape except ``dim``, which may be negative."""
    return [d for d in range(len(shape)) if d != dim % len(shape)]


def replace_size(shape: Sequence[object], dim: int, size: object) -> tuple[object, ...]:
    """Return a shape with another size in one dim."""
    return tuple(size if d == dim % len(shape) else s for d, s in enumerate(shape))


def numbers(dtype: torch.dtype) -> st.SearchStrategy[Any]:
    """Return a strategy that generates Python numbers for a tensor of this dtype: ints, floats with fractions, or
    bools; for half precision, often floats that it cannot represent exactly."""
    negative = [] if dtype == torch.uint8 else [-1, -2, -0.5, -1.5]
    inexact = [0.1, 3.7, 1.7] * (3 if dtype in (torch.float16, torch.bfloat16) else 1)
    return st.sampled_from([1, 0.5, *inexact, 2, 0, 2.5, 7, *negative, 2.0, 0.0, True, False])


def tensors(
    shape: Sequence[object], dtype: torch.dtype, values: object = "normal", constant: bool = False
) -> st.SearchStrategy[TensorSpec]:
    """Return a strategy that generates a `TensorSpec` of this shape and dtype. ``values``, ``constant``: its fields;
    ``values`` may be a strategy for the field."""
    what = values if isinstance(values, st.SearchStrategy) else st.just(values)
    return st.builds(TensorSpec, st.just(tuple(shape)), st.just(dtype), what, st.just(constant), seeds)


def spatial_rank(target: Target) -> int:
    """Return the number of spatial dims in an operator's name: 2 for adaptive_avg_pool2d."""
    return next(int(c) for c in target._schema.name if c.isdigit())


def any_tensors(shape: Sequence[object], dtype: torch.dtype) -> st.SearchStrategy[TensorSpec]:
    """Return a strategy that generates tensors with any values of the dtype, for operators that only move elements."""
    return tensors(shape, dtype, value_kinds(dtype))


def value_kinds(dtype: torch.dtype, float_kinds: Sequence[str] = FLOAT_VALUES) -> st.SearchStrategy[str]:
    """Return a strategy for names of kinds of values that suit the dtype; for floats, one of ``float_kinds``."""
    if dtype.is_floating_point:
        return st.sampled_from(float_kinds)
    whole = [kind for kind in INT_VALUES if kind in float_kinds] or INT_VALUES[:2]
    return st.sampled_from(("normal",) if dtype == torch.bool else whole)


@st.composite
def name_sizes(draw: Draw, call: Call, dims: Mapping[int, Sequence[int]] | None = None, *, least: int = 1) -> Call:
    """Replace some sizes of a call by names, which makes them dynamic: at least one size, if possible.

    ``dims`` has the dims of each tensor (by its index in ``call.specs``) that may be dynamic; None: all. Sizes below 2
    and constants stay as they are. Tensors are aligned from the right, as in broadcasting: aligned dims of equal sizes
    get the same name, those of different sizes none. ``least`` is the smallest size for which the call is valid. This
    function does not suit calls in which one size depends on another, such as ``2n``: write names into these.
    """
    free: set[tuple[int, int]] = set()
    seen: dict[int, set[Any]] = {}  # the sizes of each dim, counted from the right; None for one that is not free
    for i, spec in enumerate(call.specs):
        rank, listed = len(spec.shape), range(len(spec.shape)) if dims is None else dims.get(i, ())
        for dim, size in enumerate(spec.shape, -rank):
            if size == 1 or (dims is not None and i not in dims):
                continue
            if not spec.constant and isinstance(size, int) and (dim in listed or dim + rank in listed):
                free.add((i, dim))
            seen.setdefault(dim, set()).add(size if (i, dim) in free else None)
    unique = {dim: sizes.pop() for dim, sizes in sorted(seen.items()) if len(sizes) == 1}
    sizes = {dim: size for dim, size in unique.items() if size is not None and size >= 2}
    chosen = draw(st.lists(st.sampled_from(list(sizes)), min_size=1, max_size=len(NAMES), unique=True)) if sizes else []
    names = {dim: NAMES[i] for i, dim in enumerate(sorted(chosen))}
    index = iter(range(len(call.specs)))

    def replace_sizes(leaf: object) -> object:
        if not isinstance(leaf, TensorSpec):
            return leaf
        i, numbered = next(index), enumerate(leaf.shape, -len(leaf.shape))
        return evolve(leaf, shape=[names[p] if p in names and (i, p) in free else size for p, size in numbered])

    args, kwargs = call.map_leaves(replace_sizes)
    ranges = {name: (min(least, sizes[dim]), sizes[dim], max(8, sizes[dim])) for dim, name in names.items()}
    return Call(call.target, args, kwargs, {**call.sizes, **ranges}, call.outputs)


def is_accepted_by_eager(call: Call) -> bool:
    """Return whether eager PyTorch accepts the call at every size that will be tested."""
    return all(_runs_in_eager(call, sizes) for sizes in call.sizes_to_try)


def _runs_in_eager(call: Call, sizes: Mapping[str, int], *, in_float64: bool = False) -> bool:
    """Return whether eager runs the call at these sizes; it runs in float64 if the CPU lacks a kernel for the dtype."""
    tensors = call.create_tensors(sizes)
    if in_float64:
        tensors = tuple(t.double() if t.is_floating_point() else t for t in tensors)
    args, kwargs = call.args_with(tensors, sizes)
    try:
        with torch.no_grad():
            call.target(*args, **kwargs)
    except NotImplementedError:  # a CPU lacks a kernel for the small dtype: another dtype may have one
        return not in_float64 and _runs_in_eager(call, sizes, in_float64=True)
    except (RuntimeError, IndexError, ValueError, TypeError, ZeroDivisionError):
        return False
    return True


class Strategies(dict[Any, st.SearchStrategy[Call]]):
    """The strategies that one function declares, by operator."""


def strategy(*targets: object) -> Callable[[Callable[[Draw, object], object]], Strategies]:
    """Return a decorator that turns a function into `Strategies`, one for each target (an operator). The function
    ``(draw, target)`` returns a random ``Call`` or its ``args``; calls that eager rejects are not generated."""

    return lambda function: Strategies({target: make_strategy(target, function) for target in targets})


def make_strategy(target: object, draw_call_or_args: Callable[[Draw, Target], object]) -> st.SearchStrategy[Call]:
    """Create the strategy of one target from a function that generates its calls or their ``args``."""

    @st.composite
    def draw_call(draw: Draw) -> Call:
        drawn = draw_call_or_args(draw, target)
        return drawn if isinstance(drawn, Call) else Call(target, drawn)

    return draw_call().filter(is_accepted_by_eager)
