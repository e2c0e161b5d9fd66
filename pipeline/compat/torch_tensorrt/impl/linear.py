"""Linear layers."""

from __future__ import annotations

import torch

from pipeline.compat.torch_tensorrt.blocks import of_one

linear = of_one(torch.ops.aten.linear.default, "input", "weight", "bias")
