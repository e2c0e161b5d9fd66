"""Add scatters and cache updates.
TensorRT's scatter layer needs distinct indices. If indices may repeat, every position is compared with all indices, and
the values with this index are reduced. TensorRT's KVCacheUpdate layer writes in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.impl import base
from pipeline.impl import elementwise as _elementwise
from pipeline.impl import reduce as _reduce
from pipeline.impl.base import ITensor, Net, Size, SymbolicInt, Value, block
from pipeline.impl.empty import may_be_zero
from pipeline.impl.index import iota
from pipeline.impl.shape import bounds_of, expression, size_product, size_sum, strided_slice
from pipeline.quirks import is_avoided
from pipeline.trt import CAPABILITIES, trt


@block
def scatter(net: Net, x: ITensor, dim: int, index: Value, source: Value) -> ITensor:
    """Return ``x`` after ``x[index[i][j]][j] = source[i][j]`` (``dim=0``); ``source`` may be larger or a number."""
    if base.rank(x) == 0:
        source = base.tensor(net, source, rank=1) if isinstance(source, (trt.ITensor, torch.Tensor)) else source
        row = base.unsqueeze(net, x, [0])
        return base.reshape(net, scatter(net, row, dim, base.tensor(net, index, rank=1), source), [])
    index = base.tensor(net, index, rank=1)
    sizes = base.known_sizes(net, index)
    source = fit_to_sizes(net, source, sizes, base.dtype_of(x))
    dim = base.axis(dim, base.rank(x))
    spare = expression(base.known_sizes(net, x)[dim]) - expression(sizes[dim])
    if bounds_of(net, spare)[0] < 0:  # TensorRT requires that there are never more indices than positions
        return _scatter_flattened(net, x, dim, index, source)
    layer = net.add("scatter", x, index, source, trt.ScatterMode.ELEMENT)
    layer.axis = dim
    return layer.get_output(0)


@block
def fit_to_sizes(net: Net, source: Value, sizes: Sequence[Size], dtype: torch.dtype) -> ITensor:
    """Crop a tensor to these sizes, or broadcast a number or a 0-d tensor to them."""
    if base.rank(source) == 0:
        return base.expand(net, base.tensor(net, source, dtype), sizes)
    value = base.tensor(net, source, dtype)
    axes = [i for i, (s, t) in enumerate(zip(base.known_sizes(net, value), sizes, strict=True)) if s != t]
    if not axes:
        return value
    return strided_slice(net, value, axes, [0] * len(axes), [sizes[a] for a in axes])


def _scatter_flattened(net: Net, x: ITensor, dim: int, index: ITensor, source: ITensor) -> ITensor:
    """Scatter like `scatter`, but into the flattened ``x``, by computing the flat index of each element."""
    sizes, counts = base.known_sizes(net, x), base.known_sizes(net, index)
    strides = [size_product(sizes[i + 1 :]) for i in range(len(sizes))]
    others = [0 if i == dim else s for i, s in enumerate(strides)]
    step = base.tensor(net, base.size_as_scalar(net, strides[dim]), rank=len(sizes))
    along = base.elementwise(net, "PROD", base.cast(net, index, torch.int64), step)
    place = base.elementwise(net, "SUM", along, iota(net, counts, others))
    count = size_product(counts)
    flat = base.reshape(net, x, [size_product(sizes)])
    place, source = (base.reshape(net, v, [count]) for v in (place, source))
    return base.reshape(net, scatter_rows(net, flat, place, source), sizes)


@block
def scatter_rows(net: Net, x: ITensor, index: ITensor, source: ITensor) -> ITensor:
    """Return ``x`` after ``x[index] = source``; ``source`` has the dims of ``index``, then the dims of ``x[0]``."""
    index = base.unsqueeze(net, index, [base.rank(index)])
    return net.add("scatter", x, index, source, trt.ScatterMode.ND).get_output(0)


@block
def scatter_along(net: Net, x: ITensor, dim: int, index: Value, source: ITensor) -> ITensor:
    """Return ``x`` after ``x.select(dim, index[i]) = source.select(dim, i)`` for an index of rank 1."""
    if dim == 0:
        return scatter_rows(net, x, base.tensor(net, index), source)
    sizes = base.known_sizes(net, source)
    column = base.reshape(net, base.tensor(net, index), [-1 if i == dim else 1 for i in range(len(sizes))])
    return scatter(net, x, dim, base.expand(net, column, sizes), source)


OPERATIONS = {"sum": "SUM", "mean": "SUM", "prod": "PROD", "amax": "MAX", "amin": "MIN"}
"""The name of TensorRT's operation for each of eager's reductions."""


@block
def scatter_reduce(
    net: Net, x: ITensor, dim: int, index: ITensor, source: ITensor, reduction: str, include_self: bool = True
) -> ITensor:
    """Return ``x`` with each element replaced by the reduction of the ``source`` elements whose ``index`` is its
    position in ``dim`` (and of itself if ``include_self``). ``index`` broadcasts to ``source``, which has the other
    sizes of ``x``."""
    given = base.dtype_of(x)
    dtype = given if reduction in ("amax", "amin") and given != torch.bool else _elementwise.wide_dtype(given)
    dtype = _elementwise.arithmetic_dtype(dtype)
    index, source = _pad_if_empty(net, index, source, dim)
    places = base.known_sizes(net, x)[dim]
    sizes = [b if a == 1 else a for a, b in zip(*(base.known_sizes(net, v) for v in (index, source)), strict=True)]
    column = [places if i == dim else 1 for i in range(base.rank(index) + 1)]
    positions = base.cast(net, base.reshape(net, iota(net, [places], [1]), column), base.dtype_of(index))
    hit = base.elementwise(net, "EQUAL", base.unsqueeze(net, index, [dim]), positions)
    source = base.unsqueeze(net, base.cast(net, source, dtype), [dim])
    matching = _elementwise.where(net, hit, source, _reduce.neutral_element(OPERATIONS[reduction], dtype), dtype)
    matching = base.with_sizes(net, matching, [*sizes[:dim], places, *sizes[dim:]])  # `reduce` adds no second pad
    operation = OPERATIONS[reduction]
    extreme = operation in ("MAX", "MIN")
    reduced = (_reduce.extremum if extreme else _reduce.reduce)(net, operation, matching, [dim + 1], False)
    old = base.cast(net, x, dtype)
    if include_self:
        reduced = (_elementwise.extremum if extreme else base.elementwise)(net, operation, old, reduced)
    if reduction == "mean" or not include_self:
        count = _reduce.reduce(net, "SUM", base.cast(net, hit, torch.int32), [dim + 1], False)
        if reduction == "mean":  # quotients of integers are rounded down
            divisor = base.cast(net, _elementwise.binary(net, "SUM" if include_self else "MAX", count, 1), dtype)
            reduced = base.elementwise(net, "DIV" if dtype.is_floating_point else "FLOOR_DIV", reduced, divisor)
        if not include_self:
            some = _elementwise.compare(net, "GREATER", count, 0)
            reduced = _elementwise.where(net, some, reduced, old, dtype)
    return base.cast(net, reduced, given)


def _pad_if_empty(net: Net, index: ITensor, source: ITensor, dim: int) -> tuple[ITensor, ITensor]:
    """If there may be no indices, append the index -1, which matches no position, and an element to ``source``. A
    kernel that sums nothing would not write the positions, which it also computes for other kernels (`empty-loops`)."""
    size = base.known_sizes(net, index)[dim]
    if not is_avoided("empty-loops") or not isinstance(size, SymbolicInt) or not may_be_zero(net, size):
        return index, source
    more, nowhere = [size_sum([size, 1])], base.tensor(net, -1, base.dtype_of(index))
    index = strided_slice(net, index, [dim], [0], more, mode="FILL", fill=nowhere)
    if base.known_sizes(net, source)[dim] == 1:  # it is broadcast
        return index, source
    return index, strided_slice(net, source, [dim], [0], more, mode="FILL")


@block
def extend_to_sizes(net: Net, x: ITensor, sizes: Sequence[Size], fill: Value) -> ITensor:
    """Extend ``x`` to these sizes; new elements have the value ``fill``."""
    known = base.known_sizes(net, x)
    axes = [i for i, s in enumerate(sizes) if s != known[i]]
    if not axes:
        return x
    value = base.tensor(net, fill, base.dtype_of(x))
    return strided_slice(net, x, axes, [0] * len(axes), [sizes[a] for a in axes], mode="FILL", fill=value)


CACHE_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""The dtypes that TensorRT's cache update layer supports; it fails to build for other dtypes."""


@block
def cache_update(net: Net, cache: Value, rows: Value, starts: Value) -> ITensor:
    """Return the cache [B, N, S, D] with rows [B, N, L, D] written from ``starts`` ([B] or [1]) on. TensorRT's layer
    needs a cache that is a network input, and a result that is an output; otherwise rows are scattered."""
    source, dtype = base.tensor(net, cache), base.dtype_of(cache)
    rows, starts = base.tensor(net, rows, dtype), base.tensor(net, starts)
    fits = CAPABILITIES.kv_cache_update and dtype in CACHE_DTYPES and min(base.dims(source)[1:]) > 0
    returned = net.ctx.node is not None and any(user.op == "output" for user in net.ctx.node.users)
    if not (fits and source.is_network_input and returned):
        batch, heads, length, width = base.known_sizes(net, rows)
        if length == 0:
            return source
        steps = iota(net, [length], [1], 0)
        first = base.unsqueeze(net, base.cast(net, starts, torch.int64), [1])
        places = base.elementwise(net, "SUM", first, base.unsqueeze(net, steps, [0]))
        index = base.expand(net, base.unsqueeze(net, places, [1, 3]), [batch, heads, length, width])
        return scatter(net, source, 2, index, rows)
    places = base.expand(net, base.cast(net, starts, torch.int32), [base.known_sizes(net, rows)[0]])
    result: ITensor = net.add("kv_cache_update", source, rows, places, trt.KVCacheMode.LINEAR).get_output(0)
    net.ctx.in_place.append(result)
    return result
