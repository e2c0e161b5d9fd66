"""Add operations on masks: triangles, one-hot vectors, and selecting or replacing elements by a mask."""

from __future__ import annotations

import math

import numpy as np
import torch

from pipeline.impl import base
from pipeline.impl import elementwise as _elementwise
from pipeline.impl.base import ITensor, Net, Size, Value, block
from pipeline.impl.index import iota, merge_dims, take
from pipeline.impl.scatter import scatter
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
