"""Matmul with an added tensor."""

from __future__ import annotations

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import aten, call

addmm = block(
    lambda input, mat1, mat2, *, beta=1, alpha=1: call(aten.addmm.default, input, mat1, mat2, beta=beta, alpha=alpha),
    "aten.addmm.default",
)
