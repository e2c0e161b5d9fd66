"""A decomposition of addmm, for the packet of all its overloads.

from torch_tensorrt.dynamo.lowering import register_torch_trt_decomposition
"""

import torch

from pipeline.compat.torch_tensorrt import register_torch_trt_decomposition


@register_torch_trt_decomposition(torch.ops.aten.addmm)
def addmm(input_, mat1, mat2, *, beta=1, alpha=1):
    """A product of matrices, and a sum."""
    product = torch.ops.aten.mm(mat1, mat2)
    return torch.add(torch.mul(input_, beta), torch.mul(product, alpha))
