"""The building block for ranges of numbers (``arange``)."""

from pipeline.compat.torch_tensorrt.blocks import aten, op_block

arange = op_block(aten.arange.start_step, "start", "end", "step")
