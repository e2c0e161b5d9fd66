"""Sampling on a grid."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import Argument, Expression, call


@block
def grid(
    input: Argument,
    grid: Argument,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool] | None = None,
) -> Expression:
    """aten.grid_sampler.default"""
    return call(torch.ops.aten.grid_sampler.default, input, grid, interpolation_mode, padding_mode, align_corners)
