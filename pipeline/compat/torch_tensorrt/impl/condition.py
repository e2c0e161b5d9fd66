"""Elementwise selection between two tensors."""

from __future__ import annotations

import torch

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import call

aten = torch.ops.aten

where = select = block(
    lambda input, other, condition: call(aten.where.self, condition, input, other),
    "aten.where.self, the condition last",
)
