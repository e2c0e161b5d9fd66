"""Changes of shape."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.compat.torch_tensorrt.blocks import block, of_one
from pipeline.compat.torch_tensorrt.calls import Argument, Expression, call

aten = torch.ops.aten

pixel_shuffle = of_one(aten.pixel_shuffle.default, "input", "upscale_factor")
pixel_unshuffle = of_one(aten.pixel_unshuffle.default, "input", "downscale_factor")


@block
def reshape(input: Argument, shape: Sequence[Argument]) -> Expression:
    """aten.reshape.default; sizes are ints (one may be -1) or tensors of one element"""
    return call(aten.reshape.default, input, list(shape))


@block
def resize(input: Argument, sizes: Sequence[int]) -> Expression:
    """The first elements in another shape, and zeros if it has more"""
    return call(aten.reshape.default, _filled(input, list(sizes)), list(sizes))


def _filled(input: Argument, sizes: list[int]) -> Expression:
    wanted, given = torch.Size(sizes).numel(), torch.Size(tuple(input.shape)).numel()
    flat = call(aten.reshape.default, input, [-1])
    if wanted <= given:
        return call(aten.slice.Tensor, flat, 0, 0, wanted)
    return call(aten.constant_pad_nd.default, flat, [0, wanted - given], 0)
