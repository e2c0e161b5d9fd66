"""Resize the last dims and sample at given coordinates, by TensorRT's layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import frozen

from pipeline.impl import base
from pipeline.impl.base import ITensor, Size
from pipeline.impl.block_decorators import block
from pipeline.network.net import Net
from pipeline.trt import trt

INTERPOLATION = ("LINEAR", "NEAREST", "CUBIC")
SAMPLING = ("FILL", "CLAMP", "REFLECT")


@frozen
class Resize:
    """The options of a resize; ``mode`` is ``nearest``, ``nearest-exact``, ``linear`` or ``cubic``."""

    mode: str
    align_corners: bool = False
    antialias: bool = False

    @property
    def nearest(self) -> bool:
        return self.mode.startswith("nearest")


@block
def resize(net: Net, x: ITensor, how: Resize, sizes: Sequence[Size], scales: Sequence[float] | None) -> ITensor:
    """Resize the last dims to ``sizes``, or by ``scales``, which then also determine coordinates.

    [N, C, L] with a dynamic L is resized as [N, C, 1, L]: RTX 1.4 and 1.6.1 do not build a resize of the result of a
    loop over L ("insert_point is not in bb").
    """
    if base.rank(x) == 3 and base.dims(x)[2] < 0:
        sizes, scales = [1, *sizes] if sizes else [], None if scales is None else [1.0, *scales]
        return base.squeeze(net, resize(net, base.unsqueeze(net, x, [2]), how, sizes, scales), [2])
    layer = net.add("resize", x)
    _set_mode(layer, how)
    if scales is not None:
        layer.scales = [1.0] * (base.rank(x) - len(scales)) + list(scales)
        return layer.get_output(0)
    shape = [*base.sizes(net, x)[: base.rank(x) - len(sizes)], *sizes]
    if all(isinstance(s, int) for s in shape):
        layer.shape = tuple(shape)
    else:
        layer.set_input(1, base.shape_tensor(net, shape))
    return layer.get_output(0)


def _set_mode(layer: Any, how: Resize) -> None:
    transformation = trt.ResizeCoordinateTransformation
    layer.resize_mode = trt.InterpolationMode.__members__["NEAREST" if how.nearest else how.mode.upper()]
    if how.mode == "nearest":
        layer.coordinate_transformation = transformation.ASYMMETRIC
        layer.nearest_rounding = trt.ResizeRoundMode.FLOOR
        return
    layer.coordinate_transformation = transformation.ALIGN_CORNERS if how.align_corners else transformation.HALF_PIXEL
    if how.nearest:
        layer.nearest_rounding = trt.ResizeRoundMode.HALF_UP
    if how.align_corners:
        layer.selector_for_single_pixel = trt.ResizeSelector.UPPER
    if how.mode == "cubic":
        layer.cubic_coeff = -0.75


@block
def grid_sample(net: Net, x: ITensor, grid: ITensor, interpolation: int, padding: int, align_corners: bool) -> ITensor:
    """Sample ``x`` [N, C, H, W] at the coordinates of ``grid`` [N, h, w, 2] in -1 … 1, in float32, since halves are too
    coarse for coordinates."""
    wide = [base.cast(net, value, torch.float32) for value in (x, grid)]
    layer = net.add("grid_sample", *wide)
    layer.interpolation_mode = trt.InterpolationMode.__members__[INTERPOLATION[interpolation]]
    layer.sample_mode = trt.SampleMode.__members__[SAMPLING[padding]]
    layer.align_corners = align_corners
    return base.cast(net, layer.get_output(0), base.dtype_of(x))
