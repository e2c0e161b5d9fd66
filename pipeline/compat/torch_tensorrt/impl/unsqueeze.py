"""Dims of size 1 inserted."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.compat.torch_tensorrt.blocks import block, of_one
from pipeline.compat.torch_tensorrt.calls import Argument, Expression, call

unsqueeze = of_one(torch.ops.aten.unsqueeze.default, "input", "dim")


@block
def broadcast_in_dim(input_t: Argument, shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> Expression:
    """prims.broadcast_in_dim.default"""
    dims = list(broadcast_dimensions)
    return call(torch.ops.prims.broadcast_in_dim.default, input_t, list(shape), dims)
