"""Elementwise selection between two tensors."""

from __future__ import annotations

import torch

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import Argument, Expression, call


@block
def where(input: Argument, other: Argument, condition: Argument) -> Expression:
    """aten.where.self, the condition last"""
    return call(torch.ops.aten.where.self, condition, input, other)


select = where
