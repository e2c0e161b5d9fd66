"""The building block for linear layers."""

from pipeline.compat.torch_tensorrt.blocks import aten, of_call

linear = of_call(aten.linear.default, "input", "weight", "bias")
