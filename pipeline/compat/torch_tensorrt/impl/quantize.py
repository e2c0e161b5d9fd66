"""Refuse Torch-TensorRT's building blocks for quantization; use the quantization operators instead."""

from pipeline.compat.torch_tensorrt.blocks import unsupported

WHY = "quantize and dequantize layers come from a model's own quantize and dequantize operators"
INSTEAD = "quantize the model before it is compiled, or add ctx.net.add_quantize(…) and add_dequantize(…)"

quantize = unsupported("impl.quantize.quantize", WHY, INSTEAD)
