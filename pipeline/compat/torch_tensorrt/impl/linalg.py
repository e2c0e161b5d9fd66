"""Linear algebra."""

from __future__ import annotations

import torch

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import Argument, Expression, call


@block
def cross(input: Argument, other: Argument, dim: int) -> Expression:
    """aten.linalg_cross.default"""
    return call(torch.ops.aten.linalg_cross.default, input, other, dim=dim)
