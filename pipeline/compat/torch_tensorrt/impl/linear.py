"""Linear layers."""

from __future__ import annotations

from pipeline.compat.torch_tensorrt.blocks import of_one
from pipeline.compat.torch_tensorrt.calls import aten

linear = of_one(aten.linear.default, "input", "weight", "bias")
