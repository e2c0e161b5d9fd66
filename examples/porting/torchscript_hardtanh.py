"""TorchScript's hardtanh, a converter that is found by schema.

In C++ it is written with RegisterNodeConversionPatterns, `ctx->net`, `args[0].ITensorOrFreeze(ctx)` and
`args[1].unwrapToScalar()`; here arguments are what those calls give.
"""

from pipeline.compat.torchscript import converter
from pipeline.trt import trt


@converter("aten::hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor")
def hardtanh(ctx, node, args):
    """TensorRT's clip."""
    x, low, high = args
    layer = ctx.net.add_activation(x, trt.ActivationType.CLIP)
    layer.alpha, layer.beta = low, high
    layer.name = f"clip of {node.name}"
    return layer.get_output(0)
