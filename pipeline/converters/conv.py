"""Convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.aten.arguments import argument, bind
from pipeline.converters.declare import Rejection, dynamo_tensorrt_converter
from pipeline.impl import conv as impl
from pipeline.network.context import ConversionContext
from pipeline.settings import CompilationSettings

aten = torch.ops.aten

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def floating_with_static_kernel(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """TensorRT convolves floating-point tensors, with a kernel of static shape."""
    weight = argument(node, "weight").meta["val"]
    if weight.dtype not in FLOATS:
        return Rejection(f"its dtype is {weight.dtype}, TensorRT convolves floating-point tensors only")
    for dim, size in enumerate(weight.shape):
        if isinstance(size, torch.SymInt):
            return Rejection(f"dim {dim} of its kernel is {size}; TensorRT takes kernels of static shape only")
    kernel_is_cast = weight.dtype == torch.bfloat16  # such a deconvolution is computed in float32
    if argument(node, "transposed") and argument(node, "groups") > 1 and kernel_is_cast:
        return Rejection(
            "it is a transposed convolution in bfloat16 with groups, for which RTX 1.4 gave -5e16 instead of 0.7",
            "use float16 or float32",
        )
    return True


@dynamo_tensorrt_converter(
    aten.convolution.default, capability_validator=floating_with_static_kernel, supports_dynamic_shapes=True
)
def convolution(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation,
    bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor"""
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = bind(target, args, kwargs)
    common: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if transposed:
        return impl.deconvolution(ctx, name, x, weight, bias, output_padding=output_padding, **common)
    return impl.convolution(ctx, name, x, weight, bias, **common)
