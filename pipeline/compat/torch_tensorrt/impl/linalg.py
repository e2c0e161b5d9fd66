"""Linear algebra."""

from __future__ import annotations

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import aten, call

cross = block(
    lambda input, other, dim: call(aten.linalg_cross.default, input, other, dim=dim), "aten.linalg_cross.default"
)
