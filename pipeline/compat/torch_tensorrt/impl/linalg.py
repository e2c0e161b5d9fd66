"""Building blocks for linear algebra."""

from pipeline.compat.torch_tensorrt.blocks import aten, block, call

cross = block(
    lambda input, other, dim: call(aten.linalg_cross.default, input, other, dim=dim), "aten.linalg_cross.default"
)
