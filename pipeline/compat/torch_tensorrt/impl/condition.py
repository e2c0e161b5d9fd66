"""Building blocks for elementwise selection between two tensors (``where``)."""

from pipeline.compat.torch_tensorrt.blocks import aten, block, call

where = select = block(
    lambda input, other, condition: call(aten.where.self, condition, input, other),
    "aten.where.self, the condition last",
)
