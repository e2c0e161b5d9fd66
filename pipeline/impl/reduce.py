"""Add reductions and cumulative operators (scans) along dims. Half precision accumulates in float32, integers in int64;
variance, norms and log-sum-exp are computed in float32 and rounded once; histograms count elements above bin edges.

TensorRT's Cumulative layer computes sums. Products, extrema and log-sum-exp along a dim use a parallel scan, which
combines each element with the element 1, 2, 4, … positions before it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, Size, SymbolicInt, Value, block
from pipeline.impl.elementwise import arithmetic_dtype, compare, compare_or_equal, layer, logical_not, where, wide_dtype
from pipeline.impl.empty import may_leave_results_unwritten
from pipeline.impl.shape import arange, bounds_of, concatenate, expression, size_product, strided_slice
from pipeline.impl.unary import to_float32
from pipeline.trt import trt

Dims = Sequence[int] | int | None


def reduced_dims(dim: Dims, rank: int) -> tuple[int, ...]:
    """Return the non-negative indices of dims; all dims of the tensor if none are given."""
    if rank == 0:
        return ()
    if isinstance(dim, int):
        dim = (dim,)
    return tuple(base.axis(d, rank) for d in dim) if dim else tuple(range(rank))


@block
def reduce(net: Net, operation: str, x: ITensor, dims: Sequence[int], keepdim: bool) -> ITensor:
    """Add a reduce layer by the name of its ``trt.ReduceOperation``. Dims of size 1 are squeezed instead, since
    TensorRT's kernel has a bug on padded data (`sums-of-one`). A possibly empty dim is padded with the neutral element,
    since a kernel that loops over no elements leaves results fused into it unwritten (`empty-loops`)."""
    if base.rank(x) == 0:
        return x
    known = base.known_sizes(net, x)
    if rest := [d for d in dims if known[d] != 1]:
        x = _pad_and_reduce(net, operation, x, rest, keepdim or len(rest) < len(dims))
    return x if keepdim or len(rest) == len(dims) else base.squeeze(net, x, dims)


def _pad_and_reduce(net: Net, operation: str, x: ITensor, dims: Sequence[int], keepdim: bool) -> ITensor:
    """Reduce over dims, after padding those that may be empty by one neutral element (see `reduce`)."""
    known = base.known_sizes(net, x)
    empty = [d for d in dims if may_leave_results_unwritten(net, known[d])]
    if not empty:
        return _add_reduce_layer(net, operation, x, dims, keepdim)
    adds, dtype = "SUM" if operation == "AVG" else operation, base.dtype_of(x)
    sizes = {d: base.size_tensor(net, base.size(net, x, d)) for d in dims}
    one_more = [base.elementwise(net, "SUM", sizes[d], base.size_tensor(net, 1)) for d in empty]
    fill = base.tensor(net, 0 if adds == "SUM" else neutral_element(adds, dtype), dtype)
    x = strided_slice(net, x, empty, [0] * len(empty), one_more, mode="FILL", fill=fill)
    result = _add_reduce_layer(net, adds, x, dims, keepdim)
    if operation != "AVG":
        return result
    count = base.cast(net, functools.reduce(partial(base.elementwise, net, "PROD"), sizes.values()), dtype)
    return base.elementwise(net, "DIV", result, base.reshape(net, count, [1] * base.rank(result)))


def _add_reduce_layer(net: Net, operation: str, x: ITensor, dims: Sequence[int], keepdim: bool) -> ITensor:
    mask = base.axes_mask(dims, base.rank(x))
    return net.add("reduce", x, trt.ReduceOperation.__members__[operation], mask, keepdim).get_output(0)


def neutral_element(operation: str, dtype: torch.dtype) -> int | float:
    """Return the value that does not change a ``SUM``, ``PROD``, ``MAX`` or ``MIN``."""
    if operation == "SUM":
        return -0.0 if dtype.is_floating_point else 0
    if operation == "PROD":
        return 1
    sign = -1 if operation == "MAX" else 1
    if dtype.is_floating_point:
        return sign * math.inf
    return torch.iinfo(dtype).min if sign < 0 else torch.iinfo(dtype).max


@block
def total(net: Net, operation: str, x: Value, dim: Dims, keepdim: bool, dtype: torch.dtype) -> ITensor:
    """Return the ``SUM``, ``PROD`` or ``AVG`` over dims in ``dtype``; half precision accumulates in float32."""
    value = base.cast(net, base.tensor(net, x, dtype), wide_dtype(dtype))
    return base.cast(net, reduce(net, operation, value, reduced_dims(dim, base.rank(x)), keepdim), dtype)


@block
def extremum(net: Net, operation: str, x: Value, dim: Dims, keepdim: bool) -> ITensor:
    """Return the ``MAX`` or ``MIN`` over dims (any or all of bools). NaN propagates; TensorRT's layer ignores it."""
    dtype, dims = base.dtype_of(x), reduced_dims(dim, base.rank(x))
    value = base.tensor(net, x, arithmetic_dtype(dtype))
    result = base.cast(net, reduce(net, operation, value, dims, keepdim), dtype)
    if not dtype.is_floating_point or not dims:
        return result
    return where(net, any_nan(net, value, dims, keepdim), math.nan, result, dtype)


@block
def any_nan(net: Net, x: ITensor, dims: Sequence[int], keepdim: bool) -> ITensor:
    marks = base.cast(net, base.unary(net, "ISNAN", x), torch.int32)
    return layer(net, "GREATER", reduce(net, "SUM", marks, dims, keepdim), 0, torch.int32)


@block
def any_nonzero(net: Net, x: Value, dim: Dims, keepdim: bool) -> ITensor:
    count = base.cast(net, base.tensor(net, x, torch.bool), torch.int32)
    found = reduce(net, "SUM", count, reduced_dims(dim, base.rank(x)), keepdim)
    return layer(net, "GREATER", found, 0, torch.int32)


@block
def all_nonzero(net: Net, x: Value, dim: Dims, keepdim: bool) -> ITensor:
    zero = logical_not(net, base.tensor(net, x))
    return logical_not(net, any_nonzero(net, zero, dim, keepdim))


@block
def variance_and_mean(net: Net, x: Value, dim: Dims, correction: float, keepdim: bool) -> tuple[ITensor, ITensor]:
    """Return the variance over dims (the divisor is the number of elements minus ``correction``), and the mean."""
    value, dims = to_float32(net, x), reduced_dims(dim, base.rank(x))
    mean = reduce(net, "AVG", value, dims, keepdim=True)
    centred = base.elementwise(net, "SUB", value, mean)
    square = base.elementwise(net, "PROD", centred, centred)
    total = reduce(net, "SUM", square, dims, keepdim)
    result = layer(net, "DIV", total, _degrees_of_freedom(net, x, dims, correction), torch.float32)
    return result, mean if keepdim or not dims else base.squeeze(net, mean, dims)


def _degrees_of_freedom(net: Net, x: Value, dims: tuple[int, ...], correction: float) -> Value:
    """Return the number of reduced elements minus the correction, or 0 if that is negative."""
    sizes = [base.known_sizes(net, x)[d] for d in dims]
    if all(isinstance(s, int | SymbolicInt) for s in sizes):
        count: Value = size_product([s for s in sizes if s is not None])
    else:
        count = base.size_as_scalar(net, base.size(net, x, dims[0]))
        for d in dims[1:]:
            count = base.elementwise(net, "PROD", count, base.size_as_scalar(net, base.size(net, x, d)))
    if isinstance(count, int):
        return float(max(0, count - correction))
    less = layer(net, "SUB", base.tensor(net, count, torch.float32), float(correction), torch.float32)
    return layer(net, "MAX", less, 0.0, torch.float32)


@block
def vector_norm(net: Net, x: Value, order: float, dim: Dims, keepdim: bool) -> ITensor:
    """Return the norm of an order over dims; inf and -inf: the largest and smallest magnitude, 0: the nonzero count."""
    value, dims = base.unary(net, "ABS", to_float32(net, x)), reduced_dims(dim, base.rank(x))
    if math.isinf(order):
        return extremum(net, "MAX" if order > 0 else "MIN", value, dims, keepdim)
    if order == 0:
        zero = layer(net, "EQUAL", value, 0.0, torch.float32)
        value = base.cast(net, base.unary(net, "NOT", zero), torch.float32)
    elif order == 2:
        value = base.elementwise(net, "PROD", value, value)
    elif order != 1:
        value = layer(net, "POW", value, order, torch.float32)
    total = reduce(net, "SUM", value, dims, keepdim)
    if order in (0, 1):
        return total
    return base.unary(net, "SQRT", total) if order == 2 else layer(net, "POW", total, 1 / order, torch.float32)


@block
def log_sum_exp(net: Net, x: Value, dim: Dims, keepdim: bool) -> ITensor:
    """Return ``log(sum(exp(x)))`` over dims; the largest element is factored out, so that nothing overflows."""
    value, dims = to_float32(net, x), reduced_dims(dim, base.rank(x))
    largest = reduce(net, "MAX", value, dims, keepdim=True)
    largest = where(net, base.unary(net, "ISINF", largest), 0.0, largest)
    powers = base.unary(net, "EXP", base.elementwise(net, "SUB", value, largest))
    logarithm = base.unary(net, "LOG", reduce(net, "SUM", powers, dims, keepdim=True))
    result = base.elementwise(net, "SUM", logarithm, largest)
    return result if keepdim or not dims else base.squeeze(net, result, dims)


@block
def histogram(net: Net, x: Value, bins: int, low: float, high: float) -> ITensor:
    """Count the elements in each of ``bins`` equal bins from ``low`` to ``high``; the last bin includes ``high``."""
    dtype = base.dtype_of(x)
    edges = _bin_edges(bins, low, high, dtype)
    column = base.reshape(net, base.tensor(net, x), [-1, 1])
    from_edge = compare_or_equal(net, "GREATER", column, edges[None, :-1].contiguous())
    beyond = compare(net, "GREATER", column, edges[None, -1:].contiguous())
    counts = [reduce(net, "SUM", base.cast(net, x, torch.int32), [0], keepdim=False) for x in (from_edge, beyond)]
    later = concatenate(net, [strided_slice(net, counts[0], [0], [1], [bins - 1]), counts[1]], 0, torch.int32)
    return layer(net, "SUB", counts[0], later, torch.int32)


def _bin_edges(bins: int, low: float, high: float, dtype: torch.dtype) -> torch.Tensor:
    """Return the edges of a histogram's bins: the smallest element of each, then the largest of the last. An integer x,
    which eager supports only on a GPU, belongs to bin ``(x - low) * bins // (high - low)``."""
    if dtype.is_floating_point:
        return torch.linspace(low, high, bins + 1, dtype=dtype)
    first, width = int(low), int(high) - int(low)
    return torch.tensor([first - (-b * width // bins) for b in range(bins + 1)], dtype=dtype)


LONGEST = (1 << 31) - 1
"""The maximum length that is assumed for a dim without an upper bound: a TensorRT tensor has no more elements."""


@block
def cumulative_sum(net: Net, x: Value, dim: int, dtype: torch.dtype) -> ITensor:
    """Return the cumulative sum along a dim, computed in ``dtype``."""
    value = base.cast(net, base.tensor(net, x, dtype), wide_dtype(dtype))
    if base.rank(value) == 0:
        return base.cast(net, value, dtype)
    axis = base.constant(net, np.array(base.axis(dim, base.rank(value)), dtype=np.int64))
    layer = net.add("cumulative", value, axis, trt.CumulativeOperation.SUM, False, False)
    return base.cast(net, layer.get_output(0), dtype)


@block
def cumulative_product(net: Net, x: Value, dim: int, dtype: torch.dtype) -> ITensor:
    """Return the cumulative product along a dim, computed in ``dtype``."""
    length = _dim_length(net, x, dim)
    value = base.cast(net, base.tensor(net, x, dtype), wide_dtype(dtype))
    one = base.tensor(net, 1, base.dtype_of(value))
    for step in _scan_distances(net, length):
        before = _shift_along_dim(net, value, dim, step, length, one)
        value = base.elementwise(net, "PROD", before, value)
    return base.cast(net, value, dtype)


@block
def cumulative_extremum(net: Net, largest: bool, x: Value, dim: int) -> tuple[ITensor, ITensor]:
    """Return the cumulative maximum (or minimum) along a dim and the index of its last occurrence."""
    dtype, length = base.dtype_of(x), _dim_length(net, x, dim)
    value = base.tensor(net, x, arithmetic_dtype(dtype))
    rank = base.rank(value)
    if rank == 0:
        index = base.tensor(net, 0, torch.int64)
    else:  # positions along the dim, in a tensor of the shape of x
        line = arange(net, 0, 1, length, torch.int64)
        line = base.unsqueeze(net, line, [d for d in range(rank) if d != base.axis(dim, rank)])
        zero = base.cast(net, base.elementwise(net, "GREATER", value, value), torch.int64)
        index = base.elementwise(net, "SUM", zero, line)
    for step in _scan_distances(net, length):
        earlier_value = _shift_along_dim(net, value, dim, step, length, None)
        earlier_index = _shift_along_dim(net, index, dim, step, length, None)
        equal = base.elementwise(net, "EQUAL", value, earlier_value)
        wins = base.elementwise(net, "GREATER" if largest else "LESS", value, earlier_value)
        later = base.elementwise(net, "OR", wins, equal)
        if base.dtype_of(value).is_floating_point:  # NaN is the extremum from its position on
            later = base.elementwise(net, "OR", later, base.unary(net, "ISNAN", value))
        value = where(net, later, value, earlier_value)
        index = where(net, later, index, earlier_index)
    return base.cast(net, value, dtype), index


@block
def cumulative_log_sum_exp(net: Net, x: Value, dim: int) -> ITensor:
    """Return the cumulative log-sum-exp along a dim in float32, without overflow."""
    length, value = _dim_length(net, x, dim), base.tensor(net, x, torch.float32)
    none = base.tensor(net, -math.inf, torch.float32)
    for step in _scan_distances(net, length):
        before = _shift_along_dim(net, value, dim, step, length, none)
        larger = base.elementwise(net, "MAX", before, value)
        larger = where(net, base.unary(net, "ISINF", larger), 0.0, larger)
        first, second = (base.unary(net, "EXP", base.elementwise(net, "SUB", v, larger)) for v in (before, value))
        logarithm = base.unary(net, "LOG", base.elementwise(net, "SUM", first, second))
        value = base.elementwise(net, "SUM", logarithm, larger)
    return value


def _dim_length(net: Net, x: Value, dim: int) -> Size:
    if base.rank(x) == 0:
        return 1
    known = base.known_sizes(net, x)[dim]
    return base.size(net, x, dim) if known is None else known


def _scan_distances(net: Net, length: Size) -> list[int]:
    """Return the distances 1, 2, 4, … below the dim's maximum size; a scan has a round of layers for each distance."""
    longest = LONGEST if isinstance(length, trt.ITensor) else bounds_of(net, expression(length))[1]
    return [1 << k for k in range(int(min(max(longest, 1), LONGEST) - 1).bit_length())]


def _shift_along_dim(net: Net, x: ITensor, dim: int, step: int, length: Size, fill: ITensor | None) -> ITensor:
    """Shift by ``step`` positions along a dim; the first positions get ``fill``, or the first element if it is None."""
    mode = "CLAMP" if fill is None else "FILL"
    axis = base.axis(dim, base.rank(x))
    return strided_slice(net, x, [axis], [-step], [length], mode=mode, fill=fill)
