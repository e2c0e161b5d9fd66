"""Dims of size 1 inserted."""

from __future__ import annotations

import torch

from pipeline.compat.torch_tensorrt.blocks import of_one
from pipeline.compat.torch_tensorrt.calls import aten

unsqueeze = of_one(aten.unsqueeze.default, "input", "dim")
broadcast_in_dim = of_one(torch.ops.prims.broadcast_in_dim.default, "input_t", "shape", "broadcast_dimensions")
