"""Write to elements of tensors at indices and by masks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.impl import base
from pipeline.impl import elementwise as _elementwise
from pipeline.impl.base import ITensor, Net, Size, Value, block, network_query
from pipeline.impl.index import flatten_indices, take, wrap_negative_indices
from pipeline.impl.index_masks import place_where_true
from pipeline.impl.scatter import scatter_reduce, scatter_rows
from pipeline.impl.shape import size_product


@block
def index_put(
    net: Net,
    x: ITensor,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool,
    non_negative: frozenset[int] = frozenset(),
) -> ITensor:
    """Return ``x`` after ``x[indices] = values``, or ``+=`` if ``accumulate``. Indexed dims are moved to the front and
    merged. ``non_negative``: the positions of indices that are known to be non-negative."""
    axes = [i for i, each in enumerate(indices) if each is not None]
    rest = [i for i in range(base.rank(x)) if i not in axes]
    moved = base.permute(net, x, [*axes, *rest])
    sizes = base.known_sizes(net, moved)
    own, others = sizes[: len(axes)], sizes[len(axes) :]
    table = base.reshape(net, moved, [size_product(own), *others])
    pairs = [(a, indices[a], size) for a, size in zip(axes, own, strict=True)]
    given = [index if a in non_negative else wrap_negative_indices(net, index, size) for a, index, size in pairs]
    place = flatten_indices(net, given, own)
    count = broadcast_sizes(net, [indices[a] for a in axes])
    source = _expand_values(net, values, base.dtype_of(x), axes, count, others)
    if accumulate:
        written = _add_at_positions(net, table, place, source)
    else:
        written = scatter_rows(net, table, base.tensor(net, place), source)
    back = base.reshape(net, written, sizes)
    return base.permute(net, back, [[*axes, *rest].index(i) for i in range(len(sizes))])


@network_query
def broadcast_sizes(net: Net, tensors: Sequence[Value]) -> list[Size]:
    """Return the shape to which tensors broadcast together."""
    shapes: list[list[Size]] = [list(base.known_sizes(net, t)) for t in tensors]
    rank = max(map(len, shapes))
    columns = zip(*([1] * (rank - len(s)) + s for s in shapes), strict=True)
    return [next((s for s in column if s != 1), 1) for column in columns]


def _expand_values(
    net: Net, values: Value, dtype: torch.dtype, axes: Sequence[int], index_dims: Sequence[Size], others: Sequence[Size]
) -> ITensor:
    """Expand ``values`` to [index dims, other dims]. The indexed dims are ``axes``; in eager, the index dims come
    first, or at ``axes[0]`` if ``axes`` are adjacent. ``others``: the sizes of the dims that are not indexed."""
    place = axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
    value = base.tensor(net, values, dtype)
    full = base.expand(net, value, [*others[:place], *index_dims, *others[place:]])
    n = len(index_dims)
    return base.permute(net, full, [*range(place, place + n), *range(place), *range(place + n, n + len(others))])


def _add_at_positions(net: Net, table: ITensor, position: Value, source: ITensor) -> ITensor:
    """Return ``table`` after ``table[position] += source``: by gather and scatter if positions are unique constants."""
    others = base.known_sizes(net, table)[1:]
    if isinstance(position, torch.Tensor) and position.unique().numel() == position.numel():
        old = take(net, table, position, 0)
        return scatter_rows(net, table, base.tensor(net, position), _elementwise.binary(net, "SUM", old, source))
    index = base.tensor(net, position)
    count = size_product(base.known_sizes(net, source)[: base.rank(source) - len(others)])
    column = base.reshape(net, index, [count, *[1] * len(others)])
    return scatter_reduce(net, table, 0, column, base.reshape(net, source, [count, *others]), "sum")


@block
def mask_put(net: Net, x: ITensor, mask: Value, dim: int, values: Value, accumulate: bool) -> ITensor:
    """Return ``x`` after ``x[mask] = values`` (``+=`` if ``accumulate``); the mask covers the dims from ``dim`` on."""
    rank, covered = base.rank(x), base.rank(mask)
    trailing = rank - dim - covered
    mask = base.tensor(net, mask)
    value = base.tensor(net, values, base.dtype_of(x))
    place = base.rank(value) - trailing - 1
    if place >= 0 and base.dims(value)[place] != 1:
        value = _place_values_by_mask(net, x, mask, dim, value)
    elif place >= 0 and covered == 0:
        value = base.squeeze(net, value, [place])
    elif place >= 0:  # one dim becomes ``covered`` dims of size 1
        value = base.unsqueeze(net, value, list(range(place, place + covered - 1)))
    mask = base.unsqueeze(net, mask, list(range(covered, covered + trailing)))
    if accumulate:
        value = _elementwise.binary(net, "SUM", x, value)
    return _elementwise.where(net, mask, value, x, base.dtype_of(x))


def _place_values_by_mask(net: Net, x: ITensor, mask: ITensor, dim: int, values: ITensor) -> ITensor:
    """Return a tensor of the shape of ``x``: successive ``values`` where the mask is true, any elements elsewhere."""
    rank, covered = base.rank(x), base.rank(mask)
    order = [*range(dim, dim + covered), *range(dim), *range(dim + covered, rank)]
    sizes = base.known_sizes(net, x)
    others = [sizes[d] for d in order[covered:]]
    if 0 in base.dims(values) or 0 in sizes:
        return x
    mask = base.unsqueeze(net, mask, list(range(covered, rank)))
    mask = base.expand(net, mask, [sizes[d] for d in order])
    count = base.known_sizes(net, values)[base.rank(values) - (rank - dim - covered) - 1]
    full = base.expand(net, values, [*others[:dim], count, *others[dim:]])
    rows = base.permute(net, full, [dim, *range(dim), *range(dim + 1, len(others) + 1)])
    return base.permute(net, place_where_true(net, mask, rows), [order.index(d) for d in range(rank)])
