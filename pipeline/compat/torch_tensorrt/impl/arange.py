"""The building block for ranges of numbers (``arange``)."""

from pipeline.compat.torch_tensorrt.blocks import aten, of_call

arange = of_call(aten.arange.start_step, "start", "end", "step")
