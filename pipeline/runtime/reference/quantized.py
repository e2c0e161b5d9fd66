"""Compute TensorRT's quantization layers in PyTorch: round to nearest, saturate; scales may be per block.

PyTorch does not compute with 4-bit dtypes: between layers an element is an int8 for INT4 and a float32 for FP4. Weights
have two elements per byte, the first in the low bits.
"""

from collections.abc import Mapping, Sequence

import torch

from pipeline.network.description import Layer
from pipeline.runtime.reference.common import LayerError, Maybe, Outputs, normalize_axis, reshape_along_axis, widen
from pipeline.trt import torch_dtype

INT4, FP4, E8M0 = "int4", "float4_e2m1fn_x2", "float8_e8m0fnu"
ELEMENTS: Mapping[str, torch.dtype] = {INT4: torch.int8, FP4: torch.float32}
"""The dtype that represents a 4-bit dtype between layers."""

LEVELS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""The values of FP4 (E2M1) by their low three bits; the fourth bit is the sign."""

RANGES: Mapping[str, tuple[float, float]] = {INT4: (-8, 7), "int8": (-128, 127), "float8_e4m3fn": (-448, 448)}


def element_dtype(name: str) -> torch.dtype:
    """Return the PyTorch dtype that represents a network's dtype."""
    return ELEMENTS[name] if name in ELEMENTS else torch_dtype(name)


def unpack(weight: torch.Tensor, dtype: str) -> torch.Tensor:
    """Unpack the elements of a weight; 4-bit dtypes have two elements per byte."""
    if dtype not in ELEMENTS or weight.dtype != torch.uint8:
        return weight
    bits = torch.stack([weight & 15, weight >> 4], -1).reshape(-1).long()
    if dtype == INT4:
        return torch.where(bits > 7, bits - 16, bits).to(torch.int8)
    return torch.where(bits > 7, -1.0, 1.0) * LEVELS[bits % 8]


def _broadcast_scale(scale: torch.Tensor, shape: Sequence[int], axis: int) -> torch.Tensor:
    """Broadcast a quantization scale to a shape: a scale of the tensor, of each index of an axis, or of each block."""
    if scale.numel() == 1:
        return scale.reshape(())
    if scale.dim() == 1 and len(shape) != 1:
        return reshape_along_axis(scale, normalize_axis(axis, len(shape)), len(shape))
    for dim, (length, blocks) in enumerate(zip(shape, scale.shape, strict=True)):
        if length % blocks:
            raise LayerError(f"dimension {dim} has size {length}, not a multiple of its number of scales, {blocks}")
        scale = scale.repeat_interleave(length // blocks, dim)
    return scale


def round_to_dtype(x: torch.Tensor, dtype: str) -> torch.Tensor:
    """Round a float32 tensor to a quantized dtype: ties to the even value, saturating."""
    if dtype == FP4:
        distance = (x.abs()[..., None] - LEVELS).abs()
        least = distance.amin(-1, keepdim=True)
        even = torch.where(distance == least, torch.arange(8) % 2, 2).argmin(-1)
        return torch.copysign(LEVELS[even], x)
    if dtype == E8M0:
        return torch.exp2(x.log2().ceil().clamp(-127, 127)).to(torch.float8_e8m0fnu)
    low, high = RANGES[dtype]
    x = x.clamp(low, high)
    return x.to(torch.float8_e4m3fn) if dtype == "float8_e4m3fn" else x.round().to(torch.int8)


def quantize(layer: Layer, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Quantize with zero point 0, as TensorRT does. TensorRT's kernels multiply by the scale's reciprocal in float32,
    as their source in plans of TensorRT-RTX 1.6 and 1.7 shows."""
    each = widen(_broadcast_scale(scale, x.shape, layer.attribute("axis")))
    return round_to_dtype(widen(x) * (1 / each), layer.outputs[0].dtype)


def dequantize(layer: Layer, x: torch.Tensor, scale: torch.Tensor, zero: Maybe = None) -> torch.Tensor:
    axis = layer.attribute("axis")
    values = x.float() if zero is None else x.float() - _broadcast_scale(zero.float(), x.shape, axis)
    return (values * _broadcast_scale(scale.float(), x.shape, axis)).to(torch_dtype(layer.outputs[0].dtype))


def dynamic_quantize(layer: Layer, x: torch.Tensor, tensor_scale: Maybe = None) -> Outputs:
    """Return quantized values and the scale of each block of them.

    An E8M0 scale is the least power of two that keeps the block in the dtype's range. An E4M3 scale is the block's
    greatest magnitude divided by the dtype's greatest number, and by ``tensor_scale`` if given.
    """
    axis = normalize_axis(layer.attribute("axis"), x.dim())
    kind, of_scales = layer.outputs[0].dtype, layer.outputs[1].dtype
    moved = widen(x).movedim(axis, -1)
    blocks = moved.unflatten(-1, (-1, layer.attribute("block_size")))
    most = blocks.abs().amax(-1) / (6.0 if kind == FP4 else 448.0)
    if of_scales == E8M0:
        scales = round_to_dtype(torch.where(most > 0, most, 2.0**-127), E8M0)
        each = scales.float()
    else:
        factor = torch.ones(()) if tensor_scale is None else tensor_scale.float()
        scales = (most / factor).clamp(max=448.0).to(torch.float8_e4m3fn)
        each = scales.float() * factor
    values = round_to_dtype(torch.where(each[..., None] == 0, 0.0, blocks / each[..., None]), kind)
    return values.flatten(-2).movedim(-1, axis), scales.movedim(-1, axis)
