"""Building blocks that insert dims of size 1."""

import torch

from pipeline.compat.torch_tensorrt.blocks import aten, op_block

unsqueeze = op_block(aten.unsqueeze.default, "input", "dim")
broadcast_in_dim = op_block(torch.ops.prims.broadcast_in_dim.default, "input_t", "shape", "broadcast_dimensions")
