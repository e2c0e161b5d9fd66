"""Add pooling over the last one, two or three dims; averages are computed in float32.
TensorRT's layer does not support dilation, adaptive pooling, integers or returned indices. For these, the elements of
each window are gathered along a new dim, which is then reduced, one pooled dim after another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, block
from pipeline.impl.elementwise import arithmetic_dtype, layer, where
from pipeline.impl.index import take
from pipeline.impl.pool_windows import Windows, pad_border
from pipeline.impl.reduce import extremum, reduce
from pipeline.trt import trt


@block
def max_pool(net: Net, x: ITensor, windows: Windows) -> ITensor:
    """Return the maximum of each window; padding counts as -inf. NaN propagates, unlike in TensorRT's layer."""
    if windows.is_single:
        return extremum(net, "MAX", x, _indices_of_window_dims(x, windows), True)
    marks = base.cast(net, base.unary(net, "ISNAN", x), base.dtype_of(x))
    highest, marked = (
        _squeeze_added(net, _add_layer(net, each, windows, trt.PoolingType.MAX, windows.padding), windows, base.rank(x))
        for each in (x, marks)
    )
    dtype = base.dtype_of(x)
    return where(net, layer(net, "GREATER", marked, 0, dtype), math.nan, highest, dtype)


@block
def avg_pool(net: Net, x: ITensor, windows: Windows, count_include_pad: bool, divisor: int | None) -> ITensor:
    """Return the mean of each window, or its sum divided by ``divisor``; padding may count. A barrier keeps RTX 1.4 and
    1.6.1 from merging two averages that differ only in whether padding counts (`merged-averages`)."""
    wide, padding = base.cast(net, x, torch.float32), windows.padding
    if windows.is_single and divisor is None:
        return base.cast(net, reduce(net, "AVG", wide, _indices_of_window_dims(x, windows), True), base.dtype_of(x))
    if divisor is not None:
        # pad with zeros, so that every window is full and its sum is its mean times its volume
        wide = pad_border(net, wide, padding, [p + e for p, e in zip(padding, windows.overhangs, strict=True)])
        windows = windows.without_border()
    elif count_include_pad and any(padding) and (windows.rounds_up or any(windows.overhangs)):
        # the declared border counts; elements beyond it do not
        wide, padding = pad_border(net, wide, padding, padding), [0] * len(padding)
    padding = [0] * len(padding) if divisor else padding
    if not count_include_pad and any(padding):  # its input must differ from that of an average that counts the border
        wide = base.barrier(net, wide, "merged-averages")
    pool = _add_layer(net, wide, windows, trt.PoolingType.AVERAGE, padding)
    pool.average_count_excludes_padding = not (count_include_pad and any(padding))
    result = _squeeze_added(net, pool, windows, base.rank(x))
    if divisor is not None:
        factor = base.constant(net, math.prod(windows.kernel) / divisor, torch.float32, rank=base.rank(x))
        result = base.elementwise(net, "PROD", result, factor)
    return base.cast(net, result, base.dtype_of(x))


def _indices_of_window_dims(x: ITensor, windows: Windows) -> list[int]:
    """Return the pooled dims, the last ones of ``x``: ``[2, 3]`` for images [N, C, H, W]."""
    rank = base.rank(x)
    return list(range(rank - len(windows.kernel), rank))


def _add_layer(net: Net, x: ITensor, windows: Windows, kind: trt.PoolingType, padding: Sequence[int]) -> Any:
    """Add a pooling layer, with dims of size 1 if ``x`` lacks the batch, channel or second spatial dim."""
    flat = len(windows.kernel) == 1
    x = base.unsqueeze(net, x, [base.rank(x) - 1] * flat)
    x = base.raise_rank(net, x, len(windows.kernel) + flat + 2)
    pool = net.add("pooling_nd", x, kind, (1,) * flat + tuple(windows.kernel))
    pool.stride_nd = (1,) * flat + tuple(windows.stride)
    pool.pre_padding = (0,) * flat + tuple(padding)
    pool.post_padding = (0,) * flat + tuple(p + e for p, e in zip(padding, windows.overhangs, strict=True))
    if windows.rounds_up:
        pool.padding_mode = trt.PaddingMode.EXPLICIT_ROUND_UP
    return pool


def _squeeze_added(net: Net, pool: Any, windows: Windows, rank: int) -> ITensor:
    """Return a pooling layer's result without the dims of size 1 that `_add_layer` added to its input."""
    result = pool.get_output(0)
    added = base.rank(result) - rank
    flat = len(windows.kernel) == 1
    return base.squeeze(net, result, [*range(added - flat), *([base.rank(result) - 2] * flat)])


Array = np.ndarray[Any, Any]


@block
def gather_max(net: Net, x: ITensor, positions: Sequence[Array | None]) -> ITensor:
    """Return each window's maximum. ``positions``: [windows, elements] for each of the last dims; None: not pooled."""
    result = base.cast(net, x, arithmetic_dtype(base.dtype_of(x)))
    for dim, rows in _dims_with_windows(x, positions):
        result = extremum(net, "MAX", take(net, result, rows, dim), [dim + 1], False)
    return base.cast(net, result, base.dtype_of(x))


@block
def gather_mean(net: Net, x: ITensor, positions: Sequence[Array | None]) -> ITensor:
    """Return the mean of each window, in float32. ``positions``: [windows, elements] or None, as in `gather_max`."""
    result = base.cast(net, x, torch.float32)
    for dim, rows in _dims_with_windows(x, positions):
        times = (rows[:, :, None] == rows[:, None, :]).sum(-1)  # repeated elements share one weight
        weights = np.array(1 / times / (1 / times).sum(-1, keepdims=True), dtype=np.float32)
        shares = _constant_along(net, weights, base.rank(x) + 1, (dim, dim + 1))
        weighted = base.elementwise(net, "PROD", take(net, result, rows, dim), shares)
        result = reduce(net, "SUM", weighted, [dim + 1], False)
    return base.cast(net, result, base.dtype_of(x))


@block
def gather_argmax(net: Net, x: ITensor, positions: Sequence[Array], sizes: Sequence[int]) -> tuple[ITensor, ITensor]:
    """Return each window's first maximum (or last NaN), and its index in the flattened input of the sizes ``sizes``."""
    value, index = base.cast(net, x, arithmetic_dtype(base.dtype_of(x))), None
    step = 1
    for (dim, rows), size in zip(_dims_with_windows(x, positions), reversed(sizes), strict=True):
        candidates = [_window_element(net, value, index, dim, rows[:, j], step) for j in range(rows.shape[1])]
        value, index = candidates[0]
        for other, other_index in candidates[1:]:
            higher = base.elementwise(net, "GREATER", other, value)
            if base.dtype_of(other).is_floating_point:  # NaN counts as the largest
                higher = base.elementwise(net, "OR", higher, base.unary(net, "ISNAN", other))
            pairs = (other, value), (other_index, index)
            value, index = (net.add("select", higher, *pair).get_output(0) for pair in pairs)
        step *= size
    assert index is not None
    index = base.expand(net, index, base.sizes(net, value))
    return base.cast(net, value, base.dtype_of(x)), index


def _dims_with_windows(x: ITensor, positions: Sequence[Array | None]) -> list[tuple[int, Array]]:
    """Return (dim, its matrix in ``positions``) for each pooled dim, last dim first; None marks dims not pooled."""
    first = base.rank(x) - len(positions)
    return [(first + i, rows) for i, rows in reversed(list(enumerate(positions))) if rows is not None]


def _constant_along(net: Net, values: Array, rank: int, dims: Sequence[int]) -> ITensor:
    """Return a constant of the given rank that has the shape of ``values`` along ``dims``, and size 1 elsewhere."""
    shape = [1] * rank
    for dim, size in zip(dims, values.shape, strict=True):
        shape[dim] = size
    return base.constant(net, values.reshape(shape))


def _window_element(
    net: Net, x: ITensor, index: ITensor | None, dim: int, positions: Array, step: int
) -> tuple[ITensor, ITensor]:
    """Return one element of each window, at ``positions`` along a dim, and its flat index: ``positions * step``, plus
    its flat ``index`` in the dims that are already reduced (None: none is). ``step``: the product of their sizes."""
    picked = base.constant(net, positions)
    value = take(net, x, picked, dim)
    here = _constant_along(net, positions * step, base.rank(x), (dim,))
    if index is None:
        return value, here
    before = take(net, index, picked, dim) if base.dims(index)[dim] != 1 else index
    return value, base.elementwise(net, "SUM", before, here)
