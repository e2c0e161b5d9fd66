"""Resize where TensorRT's layer has other coordinates than eager: each result is a weighted sum of elements at
positions known at build time, gathered, weighted and summed dim by dim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor
from pipeline.impl.block_decorators import block
from pipeline.impl.reduce import reduce
from pipeline.impl.resize import Resize
from pipeline.network.net import Net

Array = np.ndarray[Any, Any]
Taps = tuple[Array, Array]
F = np.float32


@block
def resize_by_taps(
    net: Net,
    x: ITensor,
    how: Resize,
    before: Sequence[int | None],
    after: Sequence[Any],
    scales: Sequence[float | None],
) -> ITensor:
    """Resize the last dims from sizes ``before`` to ``after``; None leaves a dim as it is."""
    dtype, first = base.dtype_of(x), base.rank(x) - len(before)
    result = x if how.nearest else base.cast(net, x, torch.float32)
    for i, (size, wanted, scale) in enumerate(zip(before, after, scales, strict=True)):
        if size is not None:
            places, weights = _taps(how, size, wanted, scale)
            result = _apply(net, result, first + i, places, None if how.nearest else weights)
    return base.cast(net, result, dtype)


def _apply(net: Net, x: ITensor, dim: int, places: Array, weights: Array | None) -> ITensor:
    if weights is None:
        return net.add("gather", x, base.constant(net, places[:, 0]), dim).get_output(0)
    elements = net.add("gather", x, base.constant(net, places), dim).get_output(0)
    shape = [1] * base.rank(elements)
    shape[dim : dim + 2] = weights.shape
    weighted = base.elementwise(net, "PROD", elements, base.constant(net, weights.reshape(shape)))
    return reduce(net, "SUM", weighted, [dim + 1], False)


def _taps(how: Resize, before: int, after: int, scale: float | None) -> Taps:
    """Return the input positions of each result, and their weights."""
    step = _step(how, before, after, scale)
    index = np.arange(after, dtype=F)
    if how.antialias:
        return _antialiased(how, before, step, index)
    if how.mode == "nearest":
        return _clamped(np.floor(index * step)[:, None], np.ones((after, 1), F), before)
    if how.mode == "nearest-exact":
        return _clamped(np.floor((index + F(0.5)) * step)[:, None], np.ones((after, 1), F), before)
    origin = index * step if how.align_corners else (index + F(0.5)) * step - F(0.5)
    if how.mode == "linear":
        origin = np.maximum(origin, F(0))
    floor = np.floor(origin)
    part = (origin - floor)[:, None]
    taps = np.array([0, 1], F) if how.mode == "linear" else np.array([-1, 0, 1, 2], F)
    weight = _linear if how.mode == "linear" else _cubic
    return _clamped(floor[:, None] + taps, weight(part - taps, -0.75), before)


def _step(how: Resize, before: int, after: int, scale: float | None) -> Any:
    """Return the distance of two results in the input, in float32 as in eager."""
    if how.align_corners:
        return F((before - 1) / (after - 1)) if after > 1 else F(0)
    return F(before / after) if scale is None else F(1 / scale)


def _clamped(places: Array, weights: Array, size: int) -> Taps:
    return np.clip(places, 0, size - 1).astype(np.int64), weights.astype(F)


def _linear(distance: Array, a: float) -> Array:
    return np.maximum(F(1) - np.abs(distance), F(0))


def _cubic(distance: Array, a: float) -> Array:
    """Evaluate Keys' cubic convolution kernel."""
    d, c = np.abs(distance), F(a)
    near = ((c + 2) * d - (c + 3)) * d * d + 1
    far = ((c * d - 5 * c) * d + 8 * c) * d - 4 * c
    return np.where(d <= 1, near, np.where(d < 2, far, F(0)))


def _antialiased(how: Resize, before: int, step: Any, index: Array) -> Taps:
    """Return positions and weights that average each result's part of the input, weighted by the kernel."""
    stretch = max(step, F(1))
    support = (1 if how.mode == "linear" else 2) * stretch
    kernel = _linear if how.mode == "linear" else _cubic
    centre = step * (index + F(0.5))
    low = np.maximum((centre - support + F(0.5)).astype(np.int64), 0)
    high = np.minimum((centre + support + F(0.5)).astype(np.int64), before)
    places = low[:, None] + np.arange(int((high - low).max(initial=1)))
    weights = kernel((places - centre[:, None] + F(0.5)) / stretch, -0.5)
    weights = np.where(places < high[:, None], weights, F(0))
    return _clamped(places, weights / weights.sum(-1, keepdims=True), before)
