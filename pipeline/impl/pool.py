"""Pooling by TensorRT's layer over the last one, two or three dims; averages are computed in float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor
from pipeline.impl.block_decorators import block
from pipeline.impl.elementwise import is_nan, layer, where
from pipeline.impl.pool_windows import Windows, padded
from pipeline.impl.reduce import extremum, reduce
from pipeline.network.net import Net
from pipeline.trt import trt


@block
def max_pool(net: Net, x: ITensor, windows: Windows) -> ITensor:
    """Return the maximum of each window, with a border of -inf; NaN, which TensorRT's layer ignores, propagates."""
    if windows.is_one:
        return extremum(net, "MAX", x, _last(x, windows), True)
    marks = base.cast(net, is_nan(net, x), base.dtype_of(x))
    highest, marked = (
        _result(net, _layer(net, each, windows, trt.PoolingType.MAX, windows.padding), windows, base.rank(x))
        for each in (x, marks)
    )
    dtype = base.dtype_of(x)
    return where(net, layer(net, "GREATER", marked, 0, dtype), math.nan, highest, dtype)


@block
def avg_pool(net: Net, x: ITensor, windows: Windows, count_include_pad: bool, divisor: int | None) -> ITensor:
    """Return the mean of each window: over the elements of ``x``, or also the border, or with a given divisor. RTX 1.4
    and 1.6.1 merge two averages of one tensor that differ only in what they count (`merged-averages`)."""
    wide, padding = base.cast(net, x, torch.float32), windows.padding
    if windows.is_one and divisor is None:
        return base.cast(net, reduce(net, "AVG", wide, _last(x, windows), True), base.dtype_of(x))
    if divisor is not None:
        # pad with zeros, so that every window is full and its sum is its mean times its volume
        wide = padded(net, wide, padding, [p + e for p, e in zip(padding, windows.excess, strict=True)])
        windows = windows.inside()
    elif count_include_pad and any(padding) and (windows.rounds_up or any(windows.excess)):
        # the declared border counts; elements beyond it do not
        wide, padding = padded(net, wide, padding, padding), [0] * len(padding)
    padding = [0] * len(padding) if divisor else padding
    if not count_include_pad and any(padding):
        wide = base.barrier(
            net, wide, "merged-averages"
        )  # so that its input differs from that of an average that counts the border
    pool = _layer(net, wide, windows, trt.PoolingType.AVERAGE, padding)
    pool.average_count_excludes_padding = not (count_include_pad and any(padding))
    result = _result(net, pool, windows, base.rank(x))
    if divisor is not None:
        factor = base.constant(net, math.prod(windows.kernel) / divisor, torch.float32, rank=base.rank(x))
        result = base.elementwise(net, "PROD", result, factor)
    return base.cast(net, result, base.dtype_of(x))


def _last(x: ITensor, windows: Windows) -> list[int]:
    """Return the pooled dims."""
    rank = base.rank(x)
    return list(range(rank - len(windows.kernel), rank))


def _layer(net: Net, x: ITensor, windows: Windows, kind: trt.PoolingType, padding: Sequence[int]) -> Any:
    """Add the layer; TensorRT requires batch, channels and two or three more dims."""
    flat = len(windows.kernel) == 1
    x = base.unsqueeze(net, x, [base.rank(x) - 1] * flat)
    x = base.raise_rank(net, x, len(windows.kernel) + flat + 2)
    pool = net.add("pooling_nd", x, kind, (1,) * flat + tuple(windows.kernel))
    pool.stride_nd = (1,) * flat + tuple(windows.stride)
    pool.pre_padding = (0,) * flat + tuple(padding)
    pool.post_padding = (0,) * flat + tuple(p + e for p, e in zip(padding, windows.excess, strict=True))
    if windows.rounds_up:
        pool.padding_mode = trt.PaddingMode.EXPLICIT_ROUND_UP
    return pool


def _result(net: Net, pool: Any, windows: Windows, rank: int) -> ITensor:
    result = pool.get_output(0)
    added = base.rank(result) - rank
    flat = len(windows.kernel) == 1
    return base.squeeze(net, result, [*range(added - flat), *([base.rank(result) - 2] * flat)])
