"""Convert convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pipeline.converters.binding import CompilationSettings, Rejection, argument, aten, converts
from pipeline.impl import conv as impl
from pipeline.impl.base import ITensor, Net, Value

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def check_convolution(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The input must be a floating-point tensor, and the shape of the kernel must be static."""
    weight = argument(node, "weight").meta["val"]
    if weight.dtype not in FLOATS:
        return Rejection(f"the weight is {weight.dtype}; TensorRT supports convolutions of floating-point tensors only")
    for dim, size in enumerate(weight.shape):
        if isinstance(size, torch.SymInt):
            return Rejection(f"dim {dim} of the kernel is dynamic ({size}); TensorRT supports static kernels only")
    kernel_is_cast = weight.dtype == torch.bfloat16  # such a deconvolution is computed in float32
    if argument(node, "transposed") and argument(node, "groups") > 1 and kernel_is_cast:
        return Rejection(
            "TensorRT-RTX 1.4 computes wrong results for transposed bfloat16 convolutions with groups",
            "use float16 or float32",
        )
    return True


@converts(aten.convolution.default, validator=check_convolution)
def convolution(
    net: Net,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> ITensor:
    """convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, …) -> Tensor"""
    common: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if transposed:
        return impl.deconvolution(net, input, weight, bias, output_padding=output_padding, **common)
    return impl.convolution(net, input, weight, bias, **common)
