"""Linear layers."""

from pipeline.compat.torch_tensorrt.blocks import aten, of_one

linear = of_one(aten.linear.default, "input", "weight", "bias")
