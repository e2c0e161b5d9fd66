"""Building blocks that change a tensor's shape."""

from __future__ import annotations

import torch

from pipeline.compat.torch_tensorrt.blocks import Argument, Expression, aten, block, call, op_block

pixel_shuffle = op_block(aten.pixel_shuffle.default, "input", "upscale_factor")
pixel_unshuffle = op_block(aten.pixel_unshuffle.default, "input", "downscale_factor")
reshape = op_block(aten.reshape.default, "input", "shape")


@block
def resize(input: Argument, sizes: Argument) -> Expression:
    """Flatten ``input``, cut it or pad it with zeros to as many elements as ``sizes`` needs, and reshape it."""
    wanted, given = torch.Size(tuple(sizes)).numel(), torch.Size(tuple(input.shape)).numel()
    flat = call(aten.reshape.default, input, [-1])
    cut = call(aten.slice.Tensor, flat, 0, 0, wanted)
    filled = cut if wanted <= given else call(aten.constant_pad_nd.default, flat, [0, wanted - given], 0)
    return call(aten.reshape.default, filled, sizes)
