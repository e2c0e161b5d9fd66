"""Building blocks for casts between dtypes."""

from pipeline.compat.torch_tensorrt.blocks import aten, block, call
from pipeline.compat.torch_tensorrt.values import torch_dtype

to_copy = block(
    lambda input, dtype, force_layer=False: call(aten._to_copy.default, input, dtype=torch_dtype(dtype)),
    "aten._to_copy.default, to a dtype of torch, TensorRT or numpy; a cast to the tensor's own dtype makes no layer",
)
