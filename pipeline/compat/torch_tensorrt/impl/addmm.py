"""Matmul with an added tensor."""

from __future__ import annotations

import torch

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import Argument, Expression, call


@block
def addmm(input: Argument, mat1: Argument, mat2: Argument, *, beta: float = 1, alpha: float = 1) -> Expression:
    """aten.addmm.default"""
    return call(torch.ops.aten.addmm.default, input, mat1, mat2, beta=beta, alpha=alpha)
