"""Write to elements of tensors at indices, and add operations on masks: triangles, one-hot vectors, and selecting or
replacing elements by a mask."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from pipeline.impl import base
from pipeline.impl import elementwise as _elementwise
from pipeline.impl.base import ITensor, Net, Size, Value, block, network_query
from pipeline.impl.index import flatten_indices, iota, merge_dims, take, wrap_negative_indices
from pipeline.impl.scatter import scatter, scatter_reduce, scatter_rows
from pipeline.impl.shape import bounds_of, concatenate, size_product, size_sum, strided_slice
from pipeline.trt import trt

CONSTANT = 1 << 16
"""The maximum number of elements of a mask that becomes a constant; layers compute larger masks."""


@block
def triangle(net: Net, x: ITensor, diagonal: int, lower: bool) -> ITensor:
    """Return ``x.tril(diagonal)`` if ``lower``, else ``x.triu(diagonal)``: zeros above or below the diagonal."""
    sizes = base.known_sizes(net, x)[-2:]
    if all(isinstance(s, int) for s in sizes) and math.prod(sizes) <= CONSTANT:
        ones = torch.ones(tuple(sizes), dtype=torch.bool)
        mask = base.constant(net, ones.tril(diagonal) if lower else ones.triu(diagonal))
    else:
        offset = iota(net, sizes, [-1, 1])
        bound = diagonal + 1 if lower else diagonal - 1
        mask = _elementwise.compare(net, "LESS" if lower else "GREATER", offset, bound)
    return _elementwise.where(net, mask, x, 0, base.dtype_of(x))


@block
def masked_scatter(net: Net, x: ITensor, mask: Value, source: Value) -> ITensor:
    """Replace the elements of ``x`` where the mask is true by successive elements of ``source``."""
    if 0 in base.dims(source):
        return x
    mask = base.expand(net, base.tensor(net, mask), base.known_sizes(net, x))
    return _elementwise.where(net, mask, place_where_true(net, mask, source), x, base.dtype_of(x))


@block
def place_where_true(net: Net, mask: ITensor, source: Value) -> ITensor:
    """Return a tensor of the mask's shape: successive elements of ``source`` where it is true, else arbitrary ones."""
    sizes = base.known_sizes(net, mask)
    length = size_product(base.known_sizes(net, source))
    row = base.reshape(net, base.tensor(net, source), [length])
    if not isinstance(length, int) and bounds_of(net, length.expr)[0] < 1:
        more = torch.zeros(1, dtype=base.dtype_of(row))  # the source may be empty
        row = concatenate(net, [row, more], 0, base.dtype_of(row))
    place = _elementwise.binary(net, "MAX", _index_among_true(net, base.reshape(net, mask, [size_product(sizes)])), 0)
    return base.reshape(net, take(net, row, place, 0), sizes)


def _index_among_true(net: Net, mask: ITensor) -> ITensor:
    """Return, for each element of a 1-d mask, the number of true elements up to it minus one."""
    dim = base.constant(net, np.array(0, dtype=np.int64))
    ones = base.cast(net, mask, torch.int32)
    count = net.add("cumulative", ones, dim, trt.CumulativeOperation.SUM, False, False).get_output(0)
    return _elementwise.binary(net, "SUB", count, 1)


@block
def select_by_mask(net: Net, x: ITensor, mask: Value, dim: int, count: Size) -> ITensor:
    """Return the ``count`` elements of ``x`` where a mask over the dims from ``dim`` on is true, as one dim in place of
    the mask's. A scatter writes the position of the mask's i-th true element to index i."""
    mask = base.tensor(net, mask)
    sizes = base.known_sizes(net, mask)
    length = size_product(sizes)
    row = base.reshape(net, mask, [length])
    target = _elementwise.where(net, row, _index_among_true(net, row), base.size_tensor(net, length), torch.int64)
    zeros = base.expand(net, base.constant(net, np.array([0], dtype=np.int64)), [size_sum([length, 1])])
    target = base.with_sizes(net, target, [length])
    found = scatter(net, zeros, 0, target, iota(net, [length], [1]))
    merged, place = merge_dims(net, x, range(dim, dim + base.rank(mask)), base.known_sizes(net, x))
    return take(net, merged, strided_slice(net, found, [0], [0], [count]), place)


@block
def one_hot(net: Net, index: Value, classes: int) -> ITensor:
    """Convert class indices to one-hot vectors along a new last dim."""
    values = base.constant(net, np.array([0, 1], dtype=np.int64))
    depth = base.constant(net, np.array(classes, dtype=np.int64))
    return net.add("one_hot", base.tensor(net, index), values, depth, -1).get_output(0)


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
