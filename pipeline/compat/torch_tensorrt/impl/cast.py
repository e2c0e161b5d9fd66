"""Casts."""

from __future__ import annotations

import torch

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import Argument, Expression, call
from pipeline.compat.torch_tensorrt.dtypes import torch_dtype


@block
def to_copy(input: Argument, dtype: Argument, force_layer: bool = False) -> Expression:
    """aten._to_copy.default, to a dtype of torch, TensorRT or numpy; a cast to the tensor's own dtype makes no layer"""
    return call(torch.ops.aten._to_copy.default, input, dtype=torch_dtype(dtype))
