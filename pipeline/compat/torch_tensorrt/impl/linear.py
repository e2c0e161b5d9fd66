"""The building block for linear layers."""

from pipeline.compat.torch_tensorrt.blocks import aten, op_block

linear = op_block(aten.linear.default, "input", "weight", "bias")
