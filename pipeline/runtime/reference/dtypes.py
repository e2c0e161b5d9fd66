"""Kinds that change the dtype: casts and quantization."""

from collections.abc import Mapping

import torch

from pipeline.network.description import Layer
from pipeline.runtime.reference.common import Inputs, Kind, Outputs, Roles, along, axis_of, optional, present, wide
from pipeline.trt import torch_dtype


def converted(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A cast as a GPU does it: floats go to integers toward zero, out of range to the nearest bound. NaN goes to 0, or
    to the least int64; int8 and uint8 are the low byte of the int32 (measured on RTX 1.4)."""
    if not x.is_floating_point() or dtype.is_floating_point or dtype == torch.bool:
        return x.to(dtype)
    if dtype.itemsize == 1:
        return converted(x, torch.int32).to(dtype)
    bounds = torch.iinfo(dtype)
    nan = float(bounds.min) if dtype == torch.int64 else 0.0
    exact = x.double().nan_to_num(nan=nan, posinf=float(bounds.max), neginf=float(bounds.min)).trunc()
    inside = exact.clamp(float(bounds.min), float(bounds.max))
    high, low = exact >= float(bounds.max), exact <= float(bounds.min)  # 2**63 - 1 is not a float64
    return inside.masked_fill(high | low, 0).to(dtype).masked_fill(high, bounds.max).masked_fill(low, bounds.min)


def cast(layer: Layer, inputs: Inputs, weights: Roles) -> Outputs:
    (x,) = present(inputs, 1)
    return (converted(x, torch_dtype(layer.attribute("to_type"))),)


def identity(layer: Layer, inputs: Inputs, weights: Roles) -> Outputs:
    """Its output may have another dtype, which makes it a cast."""
    (x,) = present(inputs, 1)
    return (converted(x, torch_dtype(layer.outputs[0].dtype)),)


def _spread(layer: Layer, scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A scale for each element: from one for all, one along an axis, or one a block."""
    if scale.numel() == 1:
        return scale.reshape(())
    if scale.dim() == 1 and x.dim() != 1:
        return along(scale, axis_of(layer.attribute("axis"), x.dim()), x.dim())
    for axis, (length, blocks) in enumerate(zip(x.shape, scale.shape, strict=True)):
        scale = scale.repeat_interleave(length // blocks, axis)
    return scale


def quantized(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """clamp(round(x / scale)), to nearest and ties to even."""
    if dtype.is_floating_point:
        limit = torch.finfo(dtype).max
        return (x / scale).clamp(-limit, limit).to(dtype)
    bounds = torch.iinfo(dtype)
    return torch.round(x / scale).clamp(bounds.min, bounds.max).to(dtype)


def quantize(layer: Layer, inputs: Inputs, weights: Roles) -> Outputs:
    """Zero points are zero: TensorRT takes no others."""
    x, scale = present(inputs, 2)
    return (quantized(wide(x), wide(_spread(layer, scale, x)), torch_dtype(layer.outputs[0].dtype)),)


def dequantize(layer: Layer, inputs: Inputs, weights: Roles) -> Outputs:
    x, scale = present(inputs, 2)
    zero = optional(inputs, 2)
    values = x.float() if zero is None else x.float() - _spread(layer, zero.float(), x)
    return ((values * wide(_spread(layer, scale, x))).to(torch_dtype(layer.outputs[0].dtype)),)


KINDS: Mapping[str, Kind] = {
    "CAST": cast,
    "IDENTITY": identity,
    "QUANTIZE": quantize,
    "DEQUANTIZE": dequantize,
}
