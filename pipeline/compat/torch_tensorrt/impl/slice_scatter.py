"""A slice of a tensor replaced by another tensor."""

from __future__ import annotations

import torch

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import Argument, Expression, call


@block
def slice_scatter(
    input: Argument, src: Argument, dim: int, start: Argument = None, end: Argument = None, step: int | None = None
) -> Expression:
    """aten.slice_scatter.default"""
    return call(torch.ops.aten.slice_scatter.default, input, src, dim, start, end, 1 if step is None else step)
