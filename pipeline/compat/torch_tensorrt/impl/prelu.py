"""PReLU."""

from __future__ import annotations

import torch

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import Argument, Expression, call

aten = torch.ops.aten


@block
def prelu(input: Argument, weight: Argument) -> Expression:
    """aten.prelu.default, of a slope for each channel; aten._prelu_kernel.default of slopes that broadcast"""
    by_channel = len(weight.shape) < len(input.shape)
    return call(aten.prelu.default if by_channel else aten._prelu_kernel.default, input, weight)
