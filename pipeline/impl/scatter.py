"""Scatter. TensorRT's layer writes each element once; if several writes may reach one element, indices are compared
with every position, and the matching values are reduced."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.impl import base
from pipeline.impl import elementwise as _elementwise
from pipeline.impl import reduce as _reduce
from pipeline.impl.base import ITensor, Size, Value
from pipeline.impl.block_decorators import block
from pipeline.impl.empty import may_be_none
from pipeline.impl.index import iota
from pipeline.impl.shape import bounds_of, expression, product, sampled, total
from pipeline.network.context import SymbolicInt
from pipeline.network.net import Net
from pipeline.quirks import applies
from pipeline.trt import trt


@block
def scatter(net: Net, x: ITensor, dim: int, index: Value, source: Value) -> ITensor:
    """Return ``x`` after ``x[index[i][j]][j] = source[i][j]`` (``dim=0``); ``source`` may be larger than ``index``, or
    a number."""
    if base.rank(x) == 0:
        sizes: list[Size] = [1]
        return base.reshape(net, scatter(net, *_vectors(net, x, dim, index, source)), [])
    index = base.tensor(net, index, rank=1)
    sizes = base.known_sizes(net, index)
    source = like(net, source, sizes, base.dtype_of(x))
    dim = base.axis(dim, base.rank(x))
    if not _fits(net, sizes[dim], base.known_sizes(net, x)[dim]):
        return _scatter_flat(net, x, dim, index, source)
    layer = net.add("scatter", x, index, source, trt.ScatterMode.ELEMENT)
    layer.axis = dim
    return layer.get_output(0)


def _vectors(net: Net, x: ITensor, dim: int, index: Value, source: Value) -> tuple[ITensor, int, ITensor, Value]:
    """Return a 0-d tensor and what is written to it as vectors."""
    tensors = isinstance(source, (trt.ITensor, torch.Tensor))
    source = base.tensor(net, source, rank=1) if tensors else source
    return base.unsqueeze(net, x, [0]), dim, base.tensor(net, index, rank=1), source


@block
def like(net: Net, source: Value, sizes: Sequence[Size], dtype: torch.dtype) -> ITensor:
    """Crop a tensor to these sizes, or broadcast a number to them."""
    if base.rank(source) == 0:
        return base.expand(net, base.tensor(net, source, dtype), sizes)
    value = base.tensor(net, source, dtype)
    axes = [i for i, (s, t) in enumerate(zip(base.known_sizes(net, value), sizes, strict=True)) if s != t]
    if not axes:
        return value
    return sampled(net, value, axes, [0] * len(axes), [sizes[a] for a in axes])


def _fits(net: Net, count: Size, size: Size) -> bool:
    """Return whether there are never more indices than positions, which TensorRT requires."""
    return bounds_of(net, expression(size) - expression(count))[0] >= 0


def _scatter_flat(net: Net, x: ITensor, dim: int, index: ITensor, source: ITensor) -> ITensor:
    """Scatter into the flattened tensor."""
    sizes, counts = base.known_sizes(net, x), base.known_sizes(net, index)
    strides = [product(sizes[i + 1 :]) for i in range(len(sizes))]
    others = [0 if i == dim else s for i, s in enumerate(strides)]
    step = base.tensor(net, base.scalar_of(net, strides[dim]), rank=len(sizes))
    along = base.elementwise(net, "PROD", base.cast(net, index, torch.int64), step)
    place = base.elementwise(net, "SUM", along, iota(net, counts, others))
    count = product(counts)
    row = rows(
        net,
        base.reshape(net, x, [product(sizes)]),
        base.reshape(net, place, [count]),
        base.reshape(net, source, [count]),
    )
    return base.reshape(net, row, sizes)


@block
def rows(net: Net, x: ITensor, index: ITensor, source: ITensor) -> ITensor:
    """Return ``x`` after ``x[index] = source``; ``source`` has the dims of ``index``, then those of ``x`` after the
    first."""
    index = base.unsqueeze(net, index, [base.rank(index)])
    return net.add("scatter", x, index, source, trt.ScatterMode.ND).get_output(0)


@block
def along(net: Net, x: ITensor, dim: int, index: Value, source: ITensor) -> ITensor:
    """Return ``x`` after ``x.select(dim, index[i]) = source.select(dim, i)`` for an index of rank 1."""
    if dim == 0:
        return rows(net, x, base.tensor(net, index), source)
    sizes = base.known_sizes(net, source)
    column = base.reshape(net, base.tensor(net, index), [-1 if i == dim else 1 for i in range(len(sizes))])
    return scatter(net, x, dim, base.expand(net, column, sizes), source)


OPERATIONS = {"sum": "SUM", "mean": "SUM", "prod": "PROD", "amax": "MAX", "amin": "MIN"}
"""TensorRT's names of eager's reductions."""


@block
def scatter_reduce(
    net: Net, x: ITensor, dim: int, index: ITensor, source: ITensor, reduction: str, include_self: bool = True
) -> ITensor:
    """Reduce all values with the same index, together with the element of ``x`` (``include_self``) or in its place.
    ``index`` broadcasts to ``source``, whose other dims are those of ``x``."""
    given = base.dtype_of(x)
    dtype = given if reduction in ("amax", "amin") and given != torch.bool else _elementwise.wide(given)
    dtype = _elementwise.arithmetic(dtype)
    index, source = _never_empty(net, index, source, dim)
    places = base.known_sizes(net, x)[dim]
    sizes = [b if a == 1 else a for a, b in zip(*(base.known_sizes(net, v) for v in (index, source)), strict=True)]
    hit = _hits(net, index, dim, places)
    source = base.unsqueeze(net, base.cast(net, source, dtype), [dim])
    matching = _elementwise.where(net, hit, source, _reduce.neutral(OPERATIONS[reduction], dtype), dtype)
    matching = base.with_sizes(
        net, matching, [*sizes[:dim], places, *sizes[dim:]]
    )  # so that `reduce` adds no second pad
    reduced = _reduced(net, OPERATIONS[reduction], matching, dim + 1)
    old = base.cast(net, x, dtype)
    if include_self:
        reduced = _joined(net, OPERATIONS[reduction], old, reduced)
    if reduction == "mean" or not include_self:
        count = _reduce.reduce(net, "SUM", base.cast(net, hit, torch.int32), [dim + 1], False)
        reduced = _mean(net, reduced, count, include_self) if reduction == "mean" else reduced
        if not include_self:
            some = _elementwise.compare(net, "GREATER", count, 0)
            reduced = _elementwise.where(net, some, reduced, old, dtype)
    return base.cast(net, reduced, given)


def _never_empty(net: Net, index: ITensor, source: ITensor, dim: int) -> tuple[ITensor, ITensor]:
    """Pad indices and source by one that matches no position if they may be empty. The first sum's kernel computes the
    positions in the loop over its elements, and writes them for other kernels, which it does not if there are none
    (`empty-loops`)."""
    size = base.known_sizes(net, index)[dim]
    if not applies("empty-loops") or not isinstance(size, SymbolicInt) or not may_be_none(net, size):
        return index, source
    more, nowhere = [total([size, 1])], base.tensor(net, -1, base.dtype_of(index))
    index = sampled(net, index, [dim], [0], more, mode="FILL", fill=nowhere)
    if base.known_sizes(net, source)[dim] == 1:  # it is broadcast
        return index, source
    return index, sampled(net, source, [dim], [0], more, mode="FILL")


def _hits(net: Net, index: ITensor, dim: int, size: Size) -> ITensor:
    """Return whether each index equals each position, along a new dim before that of the indices."""
    rank = base.rank(index) + 1
    places = base.reshape(net, iota(net, [size], [1]), [size if i == dim else 1 for i in range(rank)])
    places = base.cast(net, places, base.dtype_of(index))
    return base.elementwise(net, "EQUAL", base.unsqueeze(net, index, [dim]), places)


def _reduced(net: Net, operation: str, x: ITensor, dim: int) -> ITensor:
    if operation in ("MAX", "MIN"):
        return _reduce.extremum(net, operation, x, [dim], False)
    return _reduce.reduce(net, operation, x, [dim], False)


def _joined(net: Net, operation: str, a: ITensor, b: ITensor) -> ITensor:
    if operation in ("MAX", "MIN"):
        return _elementwise.extremum(net, operation, a, b)
    return base.elementwise(net, operation, a, b)


def _mean(net: Net, total: ITensor, count: ITensor, include_self: bool) -> ITensor:
    """Divide a sum by the count, rounded down for integers."""
    dtype = base.dtype_of(total)
    number = _elementwise.binary(net, "SUM" if include_self else "MAX", count, 1)
    divisor = base.cast(net, number, dtype)
    return base.elementwise(net, "DIV" if dtype.is_floating_point else "FLOOR_DIV", total, divisor)


@block
def grown(net: Net, x: ITensor, sizes: Sequence[Size], fill: Value) -> ITensor:
    """Extend ``x`` with ``fill`` to these sizes."""
    known = base.known_sizes(net, x)
    axes = [i for i, s in enumerate(sizes) if s != known[i]]
    if not axes:
        return x
    value = base.tensor(net, fill, base.dtype_of(x))
    return sampled(net, x, axes, [0] * len(axes), [sizes[a] for a in axes], mode="FILL", fill=value)
