"""PReLU."""

from __future__ import annotations

import torch

from pipeline.compat.torch_tensorrt.blocks import of_one

prelu = of_one(torch.ops.aten.prelu.default, "input", "weight")
