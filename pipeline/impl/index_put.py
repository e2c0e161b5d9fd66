"""Writing elements by index tensors that stand for several dims."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.impl import base
from pipeline.impl import elementwise as _elementwise
from pipeline.impl.base import ITensor, Size, Value
from pipeline.impl.index import flat, take, wrapped
from pipeline.impl.index_masks import taken
from pipeline.impl.scatter import rows, scatter_reduce
from pipeline.impl.shape import product
from pipeline.network.context import ConversionContext


def index_put(
    ctx: ConversionContext,
    name: str,
    x: ITensor,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool,
    counted: frozenset[int] = frozenset(),
) -> ITensor:
    """``x`` with ``x[indices] = values``, or ``+=``: the dims that are indexed go first and become one. ``counted`` are
    the places of indices that are known not to be negative."""
    axes = [i for i, each in enumerate(indices) if each is not None]
    rest = [i for i in range(base.rank(x)) if i not in axes]
    moved = base.permute(ctx, name, x, [*axes, *rest])
    sizes = base.known_sizes(ctx, moved)
    own, others = sizes[: len(axes)], sizes[len(axes) :]
    table = base.reshape(ctx, name, moved, [product(own), *others])
    given = [indices[a] if a in counted else wrapped(ctx, name, indices[a], s) for a, s in zip(axes, own, strict=True)]
    place = flat(ctx, name, given, own)
    source = _source(ctx, name, values, base.dtype_of(x), axes, broadcast(ctx, [indices[a] for a in axes]), others)
    if accumulate:
        written = _accumulated(ctx, name, table, place, source)
    else:
        written = rows(ctx, name, table, base.tensor(ctx, name, place), source)
    back = base.reshape(ctx, name, written, sizes)
    return base.permute(ctx, name, back, [[*axes, *rest].index(i) for i in range(len(sizes))])


def broadcast(ctx: ConversionContext, tensors: Sequence[Value]) -> list[Size]:
    """The sizes of tensors that are broadcast together."""
    shapes: list[list[Size]] = [list(base.known_sizes(ctx, t)) for t in tensors]
    rank = max(map(len, shapes))
    columns = zip(*([1] * (rank - len(s)) + s for s in shapes), strict=True)
    return [next((s for s in column if s != 1), 1) for column in columns]


def _source(
    ctx: ConversionContext,
    name: str,
    values: Value,
    dtype: torch.dtype,
    axes: Sequence[int],
    count: Sequence[Size],
    others: Sequence[Size],
) -> ITensor:
    """The values for each index, then for each of the other dims. In eager indices side by side keep their place,
    and others come first."""
    place = axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
    value = base.tensor(ctx, name, values, dtype)
    whole = base.expand(ctx, name, value, [*others[:place], *count, *others[place:]])
    n = len(count)
    return base.permute(ctx, name, whole, [*range(place, place + n), *range(place), *range(place + n, n + len(others))])


def _accumulated(ctx: ConversionContext, name: str, table: ITensor, place: Value, source: ITensor) -> ITensor:
    """``table[place] += source``. What a constant names once is read, added to and written."""
    others = base.known_sizes(ctx, table)[1:]
    if isinstance(place, torch.Tensor) and place.unique().numel() == place.numel():
        old = take(ctx, name, table, place, 0)
        return rows(ctx, name, table, base.tensor(ctx, name, place), _elementwise.binary(ctx, name, "SUM", old, source))
    index = base.tensor(ctx, name, place)
    count = product(base.known_sizes(ctx, source)[: base.rank(source) - len(others)])
    column = base.reshape(ctx, name, index, [count, *[1] * len(others)])
    return scatter_reduce(ctx, name, table, 0, column, base.reshape(ctx, name, source, [count, *others]), "sum")


def mask_put(
    ctx: ConversionContext, name: str, x: ITensor, mask: Value, dim: int, values: Value, accumulate: bool
) -> ITensor:
    """``x`` with ``x[mask] = values``, or ``+=``, for a mask over the dims from ``dim`` on; the values are the same for
    all that it picks, or one for each."""
    rank, covered = base.rank(x), base.rank(mask)
    trailing = rank - dim - covered
    mask = base.tensor(ctx, name, mask)
    value = base.tensor(ctx, name, values, base.dtype_of(x))
    place = base.rank(value) - trailing - 1
    if place >= 0 and base.dims(value)[place] != 1:
        value = _picked(ctx, name, x, mask, dim, value)
    elif place >= 0:
        value = _spread(ctx, name, value, place, covered)
    mask = base.unsqueeze(ctx, name, mask, list(range(covered, covered + trailing)))
    if accumulate:
        value = _elementwise.binary(ctx, name, "SUM", x, value)
    return _elementwise.where(ctx, name, mask, value, x, base.dtype_of(x))


def _picked(ctx: ConversionContext, name: str, x: ITensor, mask: ITensor, dim: int, values: ITensor) -> ITensor:
    """Values for each element that a mask picks, each at its place: the dims of the mask go first, and back."""
    rank, covered = base.rank(x), base.rank(mask)
    order = [*range(dim, dim + covered), *range(dim), *range(dim + covered, rank)]
    sizes = base.known_sizes(ctx, x)
    others = [sizes[d] for d in order[covered:]]
    if 0 in base.dims(values) or 0 in sizes:
        return x
    mask = base.unsqueeze(ctx, name, mask, list(range(covered, rank)))
    mask = base.expand(ctx, name, mask, [sizes[d] for d in order])
    count = base.known_sizes(ctx, values)[base.rank(values) - (rank - dim - covered) - 1]
    whole = base.expand(ctx, name, values, [*others[:dim], count, *others[dim:]])
    rows = base.permute(ctx, name, whole, [dim, *range(dim), *range(dim + 1, len(others) + 1)])
    return base.permute(ctx, name, taken(ctx, name, mask, rows), [order.index(d) for d in range(rank)])


def _spread(ctx: ConversionContext, name: str, value: ITensor, place: int, count: int) -> ITensor:
    """The dim of size 1 at a place as so many dims of size 1."""
    if count == 0:
        return base.squeeze(ctx, name, value, [place])
    return base.unsqueeze(ctx, name, value, list(range(place, place + count - 1)))
