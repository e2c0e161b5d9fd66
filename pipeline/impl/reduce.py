"""Add reductions along dims: half precision accumulates in float32, integers in int64.
Variance, norms and log-sum-exp are computed in float32 and rounded once; histograms count elements above bin edges."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from functools import partial

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.block_decorators import block
from pipeline.impl.elementwise import arithmetic_dtype, compare, compare_or_equal, layer, logical_not, where, wide_dtype
from pipeline.impl.empty import may_leave_results_unwritten
from pipeline.impl.shape import concatenate, size_product, strided_slice
from pipeline.impl.unary import absolute, to_float32
from pipeline.network.context import SymbolicInt
from pipeline.network.net import Net
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
    value, dims = absolute(net, to_float32(net, x)), reduced_dims(dim, base.rank(x))
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
