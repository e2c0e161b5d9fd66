"""Building blocks for convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.compat.torch_tensorrt.blocks import Argument, Call, Expression, aten, block, call, require
from pipeline.compat.torch_tensorrt.values import per_dim

Sizes = int | Sequence[int] | None


def convolution_call(
    block_name: str,
    tensors: tuple[Argument, Argument, Argument],
    stride_padding_dilation: tuple[Sizes, Sizes, Sizes],
    groups: int | None,
    dynamic_ranges: tuple[Argument, Argument],
    output_padding: Sizes | None = None,
) -> Call:
    """Return a call of aten.convolution.default for the ``tensors`` input, weight and bias; it is transposed if there
    is an ``output_padding``. Raise a `BlockError` unless ``dynamic_ranges`` (scale, zero point) is (None, None)."""
    plain = dynamic_ranges == (None, None)
    require(plain, block_name, "quantize and dequantize layers set dynamic ranges", "leave scale and zero_point out")
    dims = len(tensors[1].shape) - 2
    given = zip(stride_padding_dilation, (1, 0, 1), strict=True)
    stride, padding, dilation = (per_dim(default if size is None else size, dims) for size, default in given)
    transposed, added = output_padding is not None, per_dim(output_padding or 0, dims)
    return call(aten.convolution.default, *tensors, stride, padding, dilation, transposed, added, groups or 1)


@block
def convNd(
    is_conv1d: bool,
    input: Argument,
    weight: Argument,
    bias: Argument,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int | None,
    scale: Argument = None,
    zero_point: Argument = None,
) -> Expression:
    """Add aten.convolution.default; ``is_conv1d`` has no effect, and ``scale`` and ``zero_point`` must be None."""
    spatial = (stride, padding, dilation)
    return convolution_call("impl.conv.convNd", (input, weight, bias), spatial, groups, (scale, zero_point))
