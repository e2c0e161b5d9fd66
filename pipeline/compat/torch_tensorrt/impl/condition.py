"""Elementwise selection between two tensors."""

from __future__ import annotations

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import aten, call

where = select = block(
    lambda input, other, condition: call(aten.where.self, condition, input, other),
    "aten.where.self, the condition last",
)
