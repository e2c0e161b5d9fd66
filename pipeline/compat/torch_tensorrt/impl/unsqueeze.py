"""Building blocks that insert dims of size 1."""

import torch

from pipeline.compat.torch_tensorrt.blocks import aten, of_call

unsqueeze = of_call(aten.unsqueeze.default, "input", "dim")
broadcast_in_dim = of_call(torch.ops.prims.broadcast_in_dim.default, "input_t", "shape", "broadcast_dimensions")
