"""Ranges of numbers."""

from __future__ import annotations

import torch

from pipeline.compat.torch_tensorrt.blocks import of_one

arange = of_one(torch.ops.aten.arange.start_step, "start", "end", "step")
