"""Linear algebra."""

from __future__ import annotations

import torch

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import call

aten = torch.ops.aten

cross = block(
    lambda input, other, dim: call(aten.linalg_cross.default, input, other, dim=dim), "aten.linalg_cross.default"
)
