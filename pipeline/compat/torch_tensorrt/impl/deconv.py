"""Building blocks for transposed convolutions."""

from __future__ import annotations

from pipeline.compat.torch_tensorrt.blocks import Argument, Expression, block
from pipeline.compat.torch_tensorrt.impl.conv import Sizes, convolution_call


@block
def deconvNd(
    is_deconv1d: bool,
    input: Argument,
    weight: Argument,
    bias: Argument,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int | None,
    output_padding: Sizes = 0,
    scale: Argument = None,
    zero_point: Argument = None,
) -> Expression:
    """Add a transposed convolution; ``is_deconv1d`` has no effect, and ``scale`` and ``zero_point`` must be None."""
    spatial, tensors = (stride, padding, dilation), (input, weight, bias)
    return convolution_call("impl.deconv.deconvNd", tensors, spatial, groups, (scale, zero_point), output_padding or 0)
