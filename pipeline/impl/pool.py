"""Pooling by TensorRT's layer, over the last one, two or three dims; averages in float32 for every input dtype."""

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
    """The highest element of each window, NaN if there is one, which TensorRT's layer ignores; the border counts as
    -inf."""
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
    """The mean of each window: over the elements inside ``x``, or also the border, or with a given divisor.

    RTX 1.4 and 1.6.1 merge two averages of one tensor that differ only in what they count (`merged-averages`).
    """
    wide, padding = base.cast(net, x, torch.float32), windows.padding
    if windows.is_one and divisor is None:
        return base.cast(net, reduce(net, "AVG", wide, _last(x, windows), True), base.dtype_of(x))
    if divisor is not None:
        # zeros all around, so that every window is whole and its sum is its mean times its volume
        wide = padded(net, wide, padding, [p + e for p, e in zip(padding, windows.excess, strict=True)])
        windows = windows.inside()
    elif count_include_pad and any(padding) and (windows.rounds_up or any(windows.excess)):
        # the declared border counts, what a window reaches beyond it does not
        wide, padding = padded(net, wide, padding, padding), [0] * len(padding)
    padding = [0] * len(padding) if divisor else padding
    if not count_include_pad and any(padding):
        wide = base.barrier(net, wide, "merged-averages")  # never the input of an average that counts the border
    made = _layer(net, wide, windows, trt.PoolingType.AVERAGE, padding)
    made.average_count_excludes_padding = not (count_include_pad and any(padding))
    result = _result(net, made, windows, base.rank(x))
    if divisor is not None:
        factor = base.constant(net, math.prod(windows.kernel) / divisor, torch.float32, rank=base.rank(x))
        result = base.elementwise(net, "PROD", result, factor)
    return base.cast(net, result, base.dtype_of(x))


def _last(x: ITensor, windows: Windows) -> list[int]:
    """The dims that are pooled."""
    rank = base.rank(x)
    return list(range(rank - len(windows.kernel), rank))


def _layer(net: Net, x: ITensor, windows: Windows, kind: trt.PoolingType, padding: Sequence[int]) -> Any:
    """The layer; TensorRT wants a batch, channels and two or three more dims."""
    flat = len(windows.kernel) == 1
    x = base.unsqueeze(net, x, [base.rank(x) - 1] * flat)
    x = base.raise_rank(net, x, len(windows.kernel) + flat + 2)
    made = net.add("pooling_nd", x, kind, (1,) * flat + tuple(windows.kernel))
    made.stride_nd = (1,) * flat + tuple(windows.stride)
    made.pre_padding = (0,) * flat + tuple(padding)
    made.post_padding = (0,) * flat + tuple(p + e for p, e in zip(padding, windows.excess, strict=True))
    if windows.rounds_up:
        made.padding_mode = trt.PaddingMode.EXPLICIT_ROUND_UP
    return made


def _result(net: Net, made: Any, windows: Windows, rank: int) -> ITensor:
    result = made.get_output(0)
    added = base.rank(result) - rank
    flat = len(windows.kernel) == 1
    return base.squeeze(net, result, [*range(added - flat), *([base.rank(result) - 2] * flat)])
