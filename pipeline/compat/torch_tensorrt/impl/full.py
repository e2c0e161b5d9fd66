"""The building block for tensors whose elements are all the same number (``full``)."""

from pipeline.compat.torch_tensorrt.blocks import aten, block, call
from pipeline.compat.torch_tensorrt.values import torch_dtype

full = block(
    lambda shape, fill_value, dtype=None: call(aten.full.default, shape, fill_value, dtype=torch_dtype(dtype)),
    "aten.full.default; sizes are ints or tensors of one element",
)
