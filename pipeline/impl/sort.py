"""Add top-k, sort and argmax along a dim by TensorRT's TopK layer."""

from __future__ import annotations

import math

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, Size, Value, block
from pipeline.impl.elementwise import arithmetic_dtype, layer, where
from pipeline.impl.index import gather
from pipeline.impl.reduce import any_nan
from pipeline.impl.shape import strided_slice
from pipeline.trt import trt

MAX_K = 3840
"""The largest k that TensorRT's TopK layer accepts."""

TOWARDS_ZERO = 1 - 2**-24
"""The factor that changes a normal float32 to the next number towards zero."""

LAST_DIMS = 4
"""TensorRT's TopK layer accepts only the last four dims of a tensor."""

ValuesAndIndices = tuple[ITensor, ITensor]


@block
def topk(net: Net, x: Value, k: Size, dim: int, largest: bool = True) -> ValuesAndIndices:
    """Return the ``k`` largest (or smallest) elements along a dim in order, and their indices; NaN is the largest."""
    values, indices, _ = _topk_with_keys(net, x, k, dim, largest)
    return values, indices


def _topk_with_keys(net: Net, x: Value, k: Size, dim: int, largest: bool) -> tuple[ITensor, ITensor, ITensor]:
    """Return the values and indices of ``topk``, and the sort keys by which TensorRT ordered them."""
    dtype, rank = base.dtype_of(x), base.rank(x)
    value = base.tensor(net, x, arithmetic_dtype(dtype), rank=2)  # TopK requires two dims
    axis = base.axis(dim, max(rank, 1)) + base.rank(value) - max(rank, 1)
    if k == 0:
        keys = values = strided_slice(net, value, [axis], [0], [0])
        places = base.cast(net, values, torch.int32)
    else:
        floats = dtype.is_floating_point
        keys, places = _topk_along_any_dim(net, _sort_keys(net, value) if floats else value, k, axis, largest)
        values = gather(net, value, places, axis) if floats else keys
    values, places, keys = (base.squeeze(net, f, range(2 - rank)) for f in (values, places, keys))
    return base.cast(net, values, dtype), base.cast(net, places, torch.int64), keys


def _sort_keys(net: Net, x: ITensor) -> ITensor:
    """Return keys that TensorRT sorts in eager's order of floats: infinity for NaN, the largest float32 for infinity.

    To make room for these, each float32 number is replaced by its neighbour towards zero. Subnormal numbers and the
    smallest normal number stay, so only this number and the next larger one get the same key.
    """
    dtype = base.dtype_of(x)
    value = base.cast(net, x, torch.float32)
    nearer = layer(net, "PROD", value, TOWARDS_ZERO, torch.float32) if dtype == torch.float32 else value
    finite = layer(net, "MIN", nearer, torch.finfo(torch.float32).max, torch.float32)
    return where(net, base.unary(net, "ISNAN", x), math.inf, finite, torch.float32)


def _topk_along_any_dim(net: Net, x: ITensor, k: Size, axis: int, largest: bool) -> ValuesAndIndices:
    """Add a TopK layer; a dim that is not among the last four is moved to the end for it."""
    rank = base.rank(x)
    if rank - axis <= LAST_DIMS:
        return _add_topk_layer(net, x, k, axis, largest)
    to_end = [d for d in range(rank) if d != axis] + [axis]
    back = sorted(range(rank), key=to_end.__getitem__)
    found = _add_topk_layer(net, base.permute(net, x, to_end), k, rank - 1, largest)
    values, indices = (base.permute(net, f, back) for f in found)
    return values, indices


def _add_topk_layer(net: Net, x: ITensor, k: Size, axis: int, largest: bool) -> ValuesAndIndices:
    operation = trt.TopKOperation.MAX if largest else trt.TopKOperation.MIN
    layer = net.add("topk", x, operation, k if isinstance(k, int) else 1, 1 << axis)
    if not isinstance(k, int):
        layer.set_input(1, base.cast(net, base.size_as_scalar(net, k), torch.int32))
    return layer.get_output(0), layer.get_output(1)


@block
def extremum(net: Net, largest: bool, x: Value, dim: int, keepdim: bool) -> ValuesAndIndices:
    """Return the largest (or smallest) element along a dim and its index; of equal elements or NaNs, the first."""
    dtype, rank = base.dtype_of(x), base.rank(x)
    if not dtype.is_floating_point:
        values, indices = topk(net, x, 1, dim, largest)
    else:
        value = base.tensor(net, x)
        there = any_nan(net, value, [base.axis(dim, rank)] if rank else [], keepdim=True)
        marks = base.cast(net, base.unary(net, "ISNAN", value), torch.int32)
        marks = base.cast(net, marks if largest else base.unary(net, "NEG", marks), dtype)
        wide = base.tensor(net, where(net, there, marks, value, dtype), rank=2)
        axis = base.axis(dim, max(rank, 1)) + base.rank(wide) - max(rank, 1)
        found = _topk_along_any_dim(net, wide, 1, axis, largest)
        values, indices = (base.squeeze(net, f, range(2 - rank)) for f in found)
        values, indices = where(net, there, math.nan, values, dtype), base.cast(net, indices, torch.int64)
    if not keepdim and rank:
        values, indices = (base.squeeze(net, f, [base.axis(dim, rank)]) for f in (values, indices))
    return values, indices


@block
def index_of_extremum(net: Net, largest: bool, x: Value, dim: int | None, keepdim: bool) -> ITensor:
    """Return the index of the largest (or smallest) element along a dim, or in the flattened tensor."""
    if dim is not None:
        return extremum(net, largest, x, dim, keepdim)[1]
    rank = base.rank(x)
    flat = base.reshape(net, base.tensor(net, x), [-1]) if rank != 1 else x
    index = extremum(net, largest, flat, 0, keepdim=False)[1]
    return base.raise_rank(net, index, rank if keepdim else 0)


@block
def sort(net: Net, x: Value, dim: int, descending: bool, stable: bool) -> ValuesAndIndices:
    """Return the sorted values along a dim, and their indices. ``stable``: equal elements keep their order."""
    if base.rank(x) == 0:
        return topk(net, x, 1, 0, descending)
    length = base.known_sizes(net, x)[dim]
    length = base.size(net, x, dim) if length is None else length
    values, indices, keys = _topk_with_keys(net, x, length, dim, descending)
    return (values, _sort_ties(net, keys, indices, length, dim)) if stable and length != 0 else (values, indices)


def _sort_ties(net: Net, keys: ITensor, indices: ITensor, length: Size, dim: int) -> ITensor:
    """Sort the indices within each run of equal keys, by sorting ``run * MAX_K + index``, where runs are numbered."""
    rank = base.rank(keys)
    axis = base.axis(dim, rank)
    before = strided_slice(net, keys, [axis], [-1], [length], mode="CLAMP")
    same = base.elementwise(net, "EQUAL", keys, before)
    starts = base.cast(net, base.unary(net, "NOT", same), torch.int64)
    place = base.constant(net, torch.tensor(axis))
    run = net.add("cumulative", starts, place, trt.CumulativeOperation.SUM, False, False).get_output(0)
    scale = base.tensor(net, MAX_K, torch.int64, rank=rank)
    key = base.elementwise(net, "SUM", base.elementwise(net, "PROD", run, scale), indices)
    ordered, _ = topk(net, key, length, dim, largest=False)
    run = layer(net, "FLOOR_DIV", ordered, scale, torch.int64)
    return base.elementwise(net, "SUB", ordered, base.elementwise(net, "PROD", run, scale))
