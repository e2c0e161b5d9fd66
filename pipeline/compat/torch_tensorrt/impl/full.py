"""Tensors of one number."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import Argument, Expression, call
from pipeline.compat.torch_tensorrt.dtypes import torch_dtype


@block
def full(shape: Sequence[Argument], fill_value: Argument, dtype: Argument = None) -> Expression:
    """aten.full.default; sizes are ints or tensors of one element"""
    return call(torch.ops.aten.full.default, list(shape), fill_value, dtype=torch_dtype(dtype))
