"""Building blocks for a matmul whose result is added to a tensor (``addmm``)."""

from pipeline.compat.torch_tensorrt.blocks import aten, block, call

addmm = block(
    lambda input, mat1, mat2, *, beta=1, alpha=1: call(aten.addmm.default, input, mat1, mat2, beta=beta, alpha=alpha),
    "aten.addmm.default",
)
