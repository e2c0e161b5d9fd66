"""Tensors of one number."""

from __future__ import annotations

import torch

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import call
from pipeline.compat.torch_tensorrt.dtypes import torch_dtype

aten = torch.ops.aten

full = block(
    lambda shape, fill_value, dtype=None: call(aten.full.default, shape, fill_value, dtype=torch_dtype(dtype)),
    "aten.full.default; sizes are ints or tensors of one element",
)
