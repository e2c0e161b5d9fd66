"""Resize the last dims, and sample at given coordinates, by TensorRT's layers.
If a layer's coordinates differ from eager's, each element of the result is instead a weighted sum of some elements of
the input, at positions (taps) that are known at build time; this is done dim by dim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from attrs import frozen

from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, Size, block
from pipeline.impl.index import take
from pipeline.impl.reduce import reduce
from pipeline.trt import trt

INTERPOLATION = ("LINEAR", "NEAREST", "CUBIC")
SAMPLING = ("FILL", "CLAMP", "REFLECT")


@frozen
class Resize:
    """The options of a resize: ``mode`` is ``nearest``, ``nearest-exact``, ``linear`` or ``cubic``."""

    mode: str
    align_corners: bool = False
    antialias: bool = False

    @property
    def is_nearest(self) -> bool:
        return self.mode.startswith("nearest")


@block
def resize(net: Net, x: ITensor, options: Resize, sizes: Sequence[Size], scales: Sequence[float] | None) -> ITensor:
    """Resize the last dims to ``sizes``, or by ``scales``, which then also determine the sampled coordinates.

    [N, C, L] with a dynamic L is resized as [N, C, 1, L], since RTX 1.4 and 1.6.1 fail to build a resize after a loop
    over L ("insert_point is not in bb").
    """
    if base.rank(x) == 3 and base.dims(x)[2] < 0:
        sizes, scales = [1, *sizes] if sizes else [], None if scales is None else [1.0, *scales]
        return base.squeeze(net, resize(net, base.unsqueeze(net, x, [2]), options, sizes, scales), [2])
    layer, transformation = net.add("resize", x), trt.ResizeCoordinateTransformation
    layer.resize_mode = trt.InterpolationMode.__members__["NEAREST" if options.is_nearest else options.mode.upper()]
    if options.mode == "nearest":
        layer.coordinate_transformation = transformation.ASYMMETRIC
        layer.nearest_rounding = trt.ResizeRoundMode.FLOOR
    elif options.align_corners:
        layer.coordinate_transformation = transformation.ALIGN_CORNERS
        layer.selector_for_single_pixel = trt.ResizeSelector.UPPER
    else:
        layer.coordinate_transformation = transformation.HALF_PIXEL
    if options.mode == "nearest-exact":
        layer.nearest_rounding = trt.ResizeRoundMode.HALF_UP
    if options.mode == "cubic":
        layer.cubic_coeff = -0.75
    if scales is not None:
        layer.scales = [1.0] * (base.rank(x) - len(scales)) + list(scales)
        return layer.get_output(0)
    shape = [*base.sizes(net, x)[: base.rank(x) - len(sizes)], *sizes]
    if all(isinstance(s, int) for s in shape):
        layer.shape = tuple(shape)
    else:
        layer.set_input(1, base.shape_tensor(net, shape))
    return layer.get_output(0)


@block
def grid_sample(net: Net, x: ITensor, grid: ITensor, interpolation: int, padding: int, align_corners: bool) -> ITensor:
    """Sample ``x`` [N, C, H, W] at ``grid`` [N, h, w, 2] in -1 … 1; half-precision coordinates are cast to float32."""
    wide = [base.cast(net, value, torch.float32) for value in (x, grid)]
    layer = net.add("grid_sample", *wide)
    layer.interpolation_mode = trt.InterpolationMode.__members__[INTERPOLATION[interpolation]]
    layer.sample_mode = trt.SampleMode.__members__[SAMPLING[padding]]
    layer.align_corners = align_corners
    return base.cast(net, layer.get_output(0), base.dtype_of(x))


Array = np.ndarray[Any, Any]
Taps = tuple[Array, Array]
F = np.float32


@block
def resize_by_taps(
    net: Net,
    x: ITensor,
    options: Resize,
    input_sizes: Sequence[int | None],
    result_sizes: Sequence[Any],
    scales: Sequence[float | None],
) -> ITensor:
    """Resize the last dims by weighted sums of elements (taps), by ``scales`` if given; input size None: unchanged."""
    dtype, first = base.dtype_of(x), base.rank(x) - len(input_sizes)
    result = x if options.is_nearest else base.cast(net, x, torch.float32)
    for i, (size, wanted, scale) in enumerate(zip(input_sizes, result_sizes, scales, strict=True)):
        if size is None:
            continue
        (places, weights), dim = _taps(options, size, wanted, scale), first + i
        if options.is_nearest:
            result = take(net, result, places[:, 0], dim)
            continue
        elements = take(net, result, places, dim)
        shape = [1] * base.rank(elements)
        shape[dim : dim + 2] = weights.shape
        weighted = base.elementwise(net, "PROD", elements, base.constant(net, weights.reshape(shape)))
        result = reduce(net, "SUM", weighted, [dim + 1], False)
    return base.cast(net, result, dtype)


def _taps(options: Resize, input_size: int, result_size: int, scale: float | None) -> Taps:
    """Return the input positions for each element of a resized dim, and the weight of each position."""
    if options.align_corners:  # the distance in the input between neighbouring elements, in float32 as in eager
        step = F((input_size - 1) / (result_size - 1)) if result_size > 1 else F(0)
    else:
        step = F(input_size / result_size) if scale is None else F(1 / scale)
    index = np.arange(result_size, dtype=F)
    if options.antialias:
        return _antialiased_taps(options, input_size, step, index)
    if options.mode == "nearest":
        return _clamp_taps(np.floor(index * step)[:, None], np.ones((result_size, 1), F), input_size)
    if options.mode == "nearest-exact":
        return _clamp_taps(np.floor((index + F(0.5)) * step)[:, None], np.ones((result_size, 1), F), input_size)
    origin = index * step if options.align_corners else (index + F(0.5)) * step - F(0.5)
    if options.mode == "linear":
        origin = np.maximum(origin, F(0))
    floor = np.floor(origin)
    part = (origin - floor)[:, None]
    taps = np.array([0, 1], F) if options.mode == "linear" else np.array([-1, 0, 1, 2], F)
    weight = _linear_kernel if options.mode == "linear" else _cubic_kernel
    return _clamp_taps(floor[:, None] + taps, weight(part - taps, -0.75), input_size)


def _clamp_taps(positions: Array, weights: Array, size: int) -> Taps:
    return np.clip(positions, 0, size - 1).astype(np.int64), weights.astype(F)


def _linear_kernel(distance: Array, a: float) -> Array:
    """Return weights of linear interpolation by distance in elements; ``a`` is unused, but `_cubic_kernel` takes it."""
    return np.maximum(F(1) - np.abs(distance), F(0))


def _cubic_kernel(distance: Array, a: float) -> Array:
    """Evaluate Keys' cubic convolution kernel with the parameter ``a`` at each distance."""
    d, c = np.abs(distance), F(a)
    near = ((c + 2) * d - (c + 3)) * d * d + 1
    far = ((c * d - 5 * c) * d + 8 * c) * d - 4 * c
    return np.where(d <= 1, near, np.where(d < 2, far, F(0)))


def _antialiased_taps(options: Resize, input_size: int, step: Any, index: Array) -> Taps:
    """Return positions and weights for antialiasing: result i of ``index`` averages the input around ``i * step``."""
    stretch = max(step, F(1))
    support = (1 if options.mode == "linear" else 2) * stretch
    kernel = _linear_kernel if options.mode == "linear" else _cubic_kernel
    centre = step * (index + F(0.5))
    low = np.maximum((centre - support + F(0.5)).astype(np.int64), 0)
    high = np.minimum((centre + support + F(0.5)).astype(np.int64), input_size)
    places = low[:, None] + np.arange(int((high - low).max(initial=1)))
    weights = kernel((places - centre[:, None] + F(0.5)) / stretch, -0.5)
    weights = np.where(places < high[:, None], weights, F(0))
    return _clamp_taps(places, weights / weights.sum(-1, keepdims=True), input_size)
