"""Refuse Torch-TensorRT's building blocks for block quantization; use the quantization operators instead."""

from pipeline.compat.torch_tensorrt.blocks import unsupported
from pipeline.compat.torch_tensorrt.impl.quantize import INSTEAD, WHY

dynamic_block_quantize = unsupported("impl.dynamic_block_quantize.dynamic_block_quantize", WHY, INSTEAD)
