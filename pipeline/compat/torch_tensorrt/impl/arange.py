"""Ranges of numbers."""

from pipeline.compat.torch_tensorrt.blocks import aten, of_one

arange = of_one(aten.arange.start_step, "start", "end", "step")
