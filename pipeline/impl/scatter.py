"""Writing elements by index. TensorRT's scatter writes each element once: where writes meet, indices are compared with
every place and what falls on it is reduced."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.impl import base
from pipeline.impl import elementwise as _elementwise
from pipeline.impl import reduce as _reduce
from pipeline.impl.base import ITensor, Size, Value
from pipeline.impl.index import iota
from pipeline.impl.shape import bounds_of, expression, product, sampled
from pipeline.network.context import ConversionContext
from pipeline.trt import trt


def scatter(ctx: ConversionContext, name: str, x: ITensor, dim: int, index: Value, source: Value) -> ITensor:
    """``x`` with ``x[index[i][j]][j] = source[i][j]``, and so on. ``source`` may be larger than ``index``, or one."""
    if base.rank(x) == 0:
        sizes: list[Size] = [1]
        return base.reshape(ctx, name, scatter(ctx, name, *_vectors(ctx, name, x, dim, index, source)), [])
    index = base.tensor(ctx, name, index, rank=1)
    sizes = base.known_sizes(ctx, index)
    source = like(ctx, name, source, sizes, base.dtype_of(x))
    dim = base.axis(dim, base.rank(x))
    if not _fits(ctx, sizes[dim], base.known_sizes(ctx, x)[dim]):
        return _scatter_flat(ctx, name, x, dim, index, source)
    layer = ctx.add(name, "scatter", x, index, source, trt.ScatterMode.ELEMENT)
    layer.axis = dim
    return layer.get_output(0)


def _vectors(
    ctx: ConversionContext, name: str, x: ITensor, dim: int, index: Value, source: Value
) -> tuple[ITensor, int, ITensor, Value]:
    """A tensor of rank 0 and what is written to it, as vectors."""
    tensors = isinstance(source, (trt.ITensor, torch.Tensor))
    source = base.tensor(ctx, name, source, rank=1) if tensors else source
    return base.unsqueeze(ctx, name, x, [0]), dim, base.tensor(ctx, name, index, rank=1), source


def like(ctx: ConversionContext, name: str, source: Value, sizes: Sequence[Size], dtype: torch.dtype) -> ITensor:
    """The part of a tensor that lies within these sizes, or a number broadcast to them."""
    if base.rank(source) == 0:
        return base.expand(ctx, name, base.tensor(ctx, name, source, dtype), sizes)
    value = base.tensor(ctx, name, source, dtype)
    axes = [i for i, (s, t) in enumerate(zip(base.known_sizes(ctx, value), sizes, strict=True)) if s != t]
    if not axes:
        return value
    return sampled(ctx, name, value, axes, [0] * len(axes), [sizes[a] for a in axes])


def _fits(ctx: ConversionContext, count: Size, size: Size) -> bool:
    """Whether there are surely no more indices than places: Myelin takes no others."""
    return bounds_of(ctx, expression(size) - expression(count))[0] >= 0


def _scatter_flat(ctx: ConversionContext, name: str, x: ITensor, dim: int, index: ITensor, source: ITensor) -> ITensor:
    """The same on a row of all elements, by the place of each in it."""
    sizes, counts = base.known_sizes(ctx, x), base.known_sizes(ctx, index)
    strides = [product(sizes[i + 1 :]) for i in range(len(sizes))]
    others = [0 if i == dim else s for i, s in enumerate(strides)]
    step = base.tensor(ctx, name, base.scalar_of(ctx, name, strides[dim]), rank=len(sizes))
    along = base.elementwise(ctx, name, "PROD", base.cast(ctx, name, index, torch.int64), step)
    place = base.elementwise(ctx, name, "SUM", along, iota(ctx, name, counts, others))
    count = product(counts)
    row = rows(
        ctx,
        name,
        base.reshape(ctx, name, x, [product(sizes)]),
        base.reshape(ctx, name, place, [count]),
        base.reshape(ctx, name, source, [count]),
    )
    return base.reshape(ctx, name, row, sizes)


def rows(ctx: ConversionContext, name: str, x: ITensor, index: ITensor, source: ITensor) -> ITensor:
    """``x`` with ``x[index] = source``; ``source`` has the dims of ``index``, then those of ``x`` but for the first."""
    index = base.unsqueeze(ctx, name, index, [base.rank(index)])
    return ctx.add(name, "scatter", x, index, source, trt.ScatterMode.ND).get_output(0)


def along(ctx: ConversionContext, name: str, x: ITensor, dim: int, index: Value, source: ITensor) -> ITensor:
    """``x`` with ``x.select(dim, index[i]) = source.select(dim, i)``, for an index of rank 1."""
    if dim == 0:
        return rows(ctx, name, x, base.tensor(ctx, name, index), source)
    sizes = base.known_sizes(ctx, source)
    column = base.reshape(ctx, name, base.tensor(ctx, name, index), [-1 if i == dim else 1 for i in range(len(sizes))])
    return scatter(ctx, name, x, dim, base.expand(ctx, name, column, sizes), source)


OPERATIONS = {"sum": "SUM", "mean": "SUM", "prod": "PROD", "amax": "MAX", "amin": "MIN"}
"""eager's reductions as TensorRT's."""


def scatter_reduce(
    ctx: ConversionContext,
    name: str,
    x: ITensor,
    dim: int,
    index: ITensor,
    source: ITensor,
    reduction: str,
    include_self: bool = True,
) -> ITensor:
    """``x`` with all that ``index`` sends to a place reduced there, together with what ``x`` has (``include_self``) or
    instead of it. ``index`` broadcasts to ``source``, whose other dims are those of ``x``."""
    given = base.dtype_of(x)
    dtype = given if reduction in ("amax", "amin") and given != torch.bool else _elementwise.wide(given)
    dtype = _elementwise.arithmetic(dtype)
    hit = _hits(ctx, name, index, dim, base.known_sizes(ctx, x)[dim])
    source = base.unsqueeze(ctx, name, base.cast(ctx, name, source, dtype), [dim])
    there = _elementwise.where(ctx, name, hit, source, neutral(reduction, dtype), dtype)
    reduced = _reduced(ctx, name, OPERATIONS[reduction], there, dim + 1)
    old = base.cast(ctx, name, x, dtype)
    if include_self:
        reduced = _joined(ctx, name, OPERATIONS[reduction], old, reduced)
    if reduction == "mean" or not include_self:
        count = _reduce.reduce(ctx, name, "SUM", base.cast(ctx, name, hit, torch.int32), [dim + 1], False)
        reduced = _mean(ctx, name, reduced, count, include_self) if reduction == "mean" else reduced
        if not include_self:
            some = _elementwise.compare(ctx, name, "GREATER", count, 0)
            reduced = _elementwise.where(ctx, name, some, reduced, old, dtype)
    return base.cast(ctx, name, reduced, given)


def _hits(ctx: ConversionContext, name: str, index: ITensor, dim: int, size: Size) -> ITensor:
    """Whether an index names a place: the places are a new dim before that of the indices."""
    rank = base.rank(index) + 1
    places = base.reshape(ctx, name, iota(ctx, name, [size], [1]), [size if i == dim else 1 for i in range(rank)])
    places = base.cast(ctx, name, places, base.dtype_of(index))
    return base.elementwise(ctx, name, "EQUAL", base.unsqueeze(ctx, name, index, [dim]), places)


def neutral(reduction: str, dtype: torch.dtype) -> int | float:
    """What changes nothing in a reduction."""
    if reduction in ("sum", "mean"):
        return -0.0 if dtype.is_floating_point else 0
    if reduction == "prod":
        return 1
    sign = -1 if reduction == "amax" else 1
    if dtype.is_floating_point:
        return sign * float("inf")
    return torch.iinfo(dtype).min if sign < 0 else torch.iinfo(dtype).max


def _reduced(ctx: ConversionContext, name: str, operation: str, x: ITensor, dim: int) -> ITensor:
    if operation in ("MAX", "MIN"):
        return _reduce.extremum(ctx, name, operation, x, [dim], False)
    return _reduce.reduce(ctx, name, operation, x, [dim], False)


def _joined(ctx: ConversionContext, name: str, operation: str, a: ITensor, b: ITensor) -> ITensor:
    if operation in ("MAX", "MIN"):
        return _elementwise.extremum(ctx, name, operation, a, b)
    return base.elementwise(ctx, name, operation, a, b)


def _mean(ctx: ConversionContext, name: str, total: ITensor, count: ITensor, include_self: bool) -> ITensor:
    """The sum over how many there are; rounded down for integers."""
    dtype = base.dtype_of(total)
    number = _elementwise.binary(ctx, name, "SUM" if include_self else "MAX", count, 1)
    divisor = base.cast(ctx, name, number, dtype)
    return base.elementwise(ctx, name, "DIV" if dtype.is_floating_point else "FLOOR_DIV", total, divisor)


def grown(ctx: ConversionContext, name: str, x: ITensor, sizes: Sequence[Size], fill: Value) -> ITensor:
    """``x`` with ``fill`` after its elements, up to these sizes."""
    known = base.known_sizes(ctx, x)
    axes = [i for i, s in enumerate(sizes) if s != known[i]]
    if not axes:
        return x
    value = base.tensor(ctx, name, fill, base.dtype_of(x))
    return sampled(ctx, name, x, axes, [0] * len(axes), [sizes[a] for a in axes], mode="FILL", fill=value)
