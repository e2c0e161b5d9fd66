"""Ranges of numbers."""

from __future__ import annotations

from pipeline.compat.torch_tensorrt.blocks import of_one
from pipeline.compat.torch_tensorrt.calls import aten

arange = of_one(aten.arange.start_step, "start", "end", "step")
