"""Pooling that TensorRT's layer lacks: dilated, adaptive, of integers, or with indices. Dim by dim, the elements of
each window are gathered along a new dim and reduced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor
from pipeline.impl.block_decorators import block
from pipeline.impl.elementwise import arithmetic, is_nan
from pipeline.impl.reduce import extremum, reduce
from pipeline.network.net import Net

Places = np.ndarray[Any, Any]


@block
def gathered_max(net: Net, x: ITensor, places: Sequence[Places | None]) -> ITensor:
    """Return the maximum of each window of the last dims; None leaves a dim as it is."""
    result = base.cast(net, x, arithmetic(base.dtype_of(x)))
    for dim, rows in _by_dim(x, places):
        result = extremum(net, "MAX", _elements(net, result, dim, rows), [dim + 1], False)
    return base.cast(net, result, base.dtype_of(x))


@block
def gathered_mean(net: Net, x: ITensor, places: Sequence[Places | None]) -> ITensor:
    """Return the mean of each window of the last dims, computed in float32."""
    result = base.cast(net, x, torch.float32)
    for dim, rows in _by_dim(x, places):
        shares = _along(net, _shares(rows), base.rank(x) + 1, (dim, dim + 1))
        weighted = base.elementwise(net, "PROD", _elements(net, result, dim, rows), shares)
        result = reduce(net, "SUM", weighted, [dim + 1], False)
    return base.cast(net, result, base.dtype_of(x))


@block
def gathered_argmax(net: Net, x: ITensor, places: Sequence[Places], sizes: Sequence[int]) -> tuple[ITensor, ITensor]:
    """Return the maximum of each window and its index in the flattened dims: of equal ones the first, of NaN the
    last."""
    value, index = base.cast(net, x, arithmetic(base.dtype_of(x))), None
    step = 1
    for (dim, rows), size in zip(_by_dim(x, places), reversed(sizes), strict=True):
        candidates = [_candidate(net, value, index, dim, rows[:, j], step) for j in range(rows.shape[1])]
        value, index = candidates[0]
        for other in candidates[1:]:
            value, index = _better(net, value, index, *other)
        step *= size
    assert index is not None
    index = base.expand(net, index, base.sizes(net, value))
    return base.cast(net, value, base.dtype_of(x)), index


def _by_dim(x: ITensor, places: Sequence[Places | None]) -> list[tuple[int, Places]]:
    """Return the dims that have windows, from the last to the first."""
    first = base.rank(x) - len(places)
    return [(first + i, rows) for i, rows in reversed(list(enumerate(places))) if rows is not None]


def _elements(net: Net, x: ITensor, dim: int, rows: Places) -> ITensor:
    """Gather the elements of each window along a new dim after the windows' dim."""
    return net.add("gather", x, base.constant(net, rows), dim).get_output(0)


def _shares(rows: Places) -> Places:
    """Return the weight of each element in the mean; repeated elements share one weight."""
    times = (rows[:, :, None] == rows[:, None, :]).sum(-1)
    return np.array(1 / times / (1 / times).sum(-1, keepdims=True), dtype=np.float32)


def _along(net: Net, values: Places, rank: int, dims: Sequence[int]) -> ITensor:
    """Return a constant that extends along dims of a tensor of that rank."""
    shape = [1] * rank
    for dim, size in zip(dims, values.shape, strict=True):
        shape[dim] = size
    return base.constant(net, values.reshape(shape))


def _candidate(
    net: Net, x: ITensor, index: ITensor | None, dim: int, places: Places, step: int
) -> tuple[ITensor, ITensor]:
    """Return one element of each window and its index."""
    picked = base.constant(net, places)
    value = net.add("gather", x, picked, dim).get_output(0)
    here = _along(net, places * step, base.rank(x), (dim,))
    if index is None:
        return value, here
    before = net.add("gather", index, picked, dim).get_output(0) if base.dims(index)[dim] != 1 else index
    return value, base.elementwise(net, "SUM", before, here)


def _better(net: Net, value: ITensor, index: ITensor, other: ITensor, place: ITensor) -> tuple[ITensor, ITensor]:
    """Choose the other element and its index where it is higher or NaN."""
    higher = base.elementwise(net, "GREATER", other, value)
    if base.dtype_of(other).is_floating_point:
        higher = base.elementwise(net, "OR", higher, is_nan(net, other))
    value, index = (net.add("select", higher, new, old).get_output(0) for new, old in ((other, value), (place, index)))
    return value, index
