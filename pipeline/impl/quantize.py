"""Quantized tensors: codes with their scales, as layers that TensorRT fuses with products."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final

import torch

from pipeline.aten.quantized import TYPES, is_packed
from pipeline.impl import base, elementwise
from pipeline.impl.base import ITensor, Value
from pipeline.impl.block_decorators import block as building_block
from pipeline.network.net import Net
from pipeline.trt import dtype_called, to_trt, trt

NAMES: Final = MappingProxyType(
    {"int8": "int8", "int4": "int4", "fp8": "float8_e4m3fn", "fp4": "float4_e2m1fn_x2", "e8m0": "float8_e8m0fnu"}
)
"""The network's dtype of each type of codes, by torch's name."""


def axis_of(block: Sequence[int]) -> int | None:
    """The only dim along which each place has its own scale; None for other blocks."""
    ones = [dim for dim, each in enumerate(block) if each == 1]
    return ones[0] if len(ones) == 1 and sum(each == -1 for each in block) == len(block) - 1 else None


@building_block
def codes(net: Net, value: torch.Tensor, type: str) -> ITensor:
    """A constant layer of codes, stored in their own number of bits."""
    shape = (*value.shape[:-1], 2 * value.shape[-1]) if is_packed(value, type) else tuple(value.shape)
    return net.add("constant", shape, net.ctx.trt_codes(value, NAMES[type], shape)).get_output(0)


@building_block
def scale_of(net: Net, scale: Value, block: Sequence[int], dtype: torch.dtype) -> ITensor:
    """Scales in the layers' form: one, one for each place along a dim, or one per block; those of blocks in the dtype
    of the numbers, others in float32, since products of INT8 accumulate in the dtype of the scales."""
    if isinstance(scale, trt.ITensor):
        return scale
    if scale.dtype == torch.float8_e8m0fnu:
        return codes(net, scale, "e8m0")
    if scale.numel() == 1:
        return base.cast(net, _viewed(net, scale, ()), torch.float32)
    if axis_of(block) is not None:
        return base.cast(net, _viewed(net, scale, (scale.numel(),)), torch.float32)
    return base.tensor(net, scale, dtype)


def _viewed(net: Net, value: torch.Tensor, shape: tuple[int, ...]) -> ITensor:
    """A constant under another shape, without a layer that would lie between it and its reader."""
    made: ITensor = net.add("constant", shape, net.ctx.trt_weights(value)).get_output(0)
    return made


@building_block
def dequantize(net: Net, x: Value, scale: Value, type: str, block: Sequence[int], dtype: torch.dtype) -> ITensor:
    """The numbers that codes stand for: those of a constant tensor, or the result of `quantize`.

    RTX 1.6 multiplies INT4 by float32 in one kernel, which an H200 refuses ("cuDNN graph compilation failed"); the
    maximum of the numbers and themselves keeps the product in a kernel of its own.
    """
    x = codes(net, x, type) if isinstance(x, torch.Tensor) else x
    scales = scale_of(net, scale, block, dtype)
    made = _with_axis(net.add("dequantize", x, scales, to_trt(dtype)), block)
    return base.barrier(net, made, "int4-by-float32") if (type, dtype) == ("int4", torch.float32) else made


@building_block
def quantize(net: Net, x: Value, scale: Value, type: str, block: Sequence[int]) -> ITensor:
    """The codes of a tensor of floats."""
    x = base.tensor(net, x)
    scales = scale_of(net, scale, block, base.dtype_of(x))
    return _with_axis(net.add("quantize", x, scales, dtype_called(NAMES[type])), block)


def _with_axis(layer: Any, block: Sequence[int]) -> ITensor:
    axis = axis_of(block)
    if axis is not None:
        layer.axis = axis
    made: ITensor = layer.get_output(0)
    return made


@building_block
def fake_quantize(net: Net, x: Value, scale: Value, type: str, block: Sequence[int]) -> ITensor:
    """Round a tensor to its codes and back: a pair of layers, which products fuse into their kernel."""
    dtype = base.dtype_of(x)
    made = quantize(net, x, scale, type, block)
    return dequantize(net, made, scale, type, block, dtype)


@building_block
def rounded(net: Net, x: Value, scale: Value, type: str) -> ITensor:
    """The same by arithmetic, with one scale and integer codes, for products for which TensorRT has no kernel of
    codes."""
    dtype, kind = base.dtype_of(x), TYPES[type]
    each = scale_of(net, scale, (), torch.float32)
    scaled = elementwise.binary(net, "PROD", base.tensor(net, x, torch.float32), base.unary(net, "RECIP", each))
    low = elementwise.binary(net, "MAX", base.unary(net, "ROUND", scaled), kind.low)
    codes = elementwise.binary(net, "MIN", low, kind.high)
    return base.cast(net, elementwise.binary(net, "PROD", codes, each), dtype)


@building_block
def fake_quantize_blocks(net: Net, x: Value, scale: Value | None, type: str, size: int) -> ITensor:
    """The same with scales that the engine computes for each block along the last dim: E8M0, or E4M3 times
    ``scale``."""
    x, dtype = base.tensor(net, x), base.dtype_of(x)
    of_scales = dtype_called(NAMES["e8m0" if scale is None else "fp8"])
    layer = net.add("dynamic_quantize", x, base.rank(x) - 1, size, dtype_called(NAMES[type]), of_scales)
    if scale is None:
        return net.add("dequantize", layer.get_output(0), layer.get_output(1), to_trt(dtype)).get_output(0)
    whole = scale_of(net, scale, [-1], torch.float32)
    layer.set_input(1, whole)
    scales = net.add("dequantize", layer.get_output(1), whole, to_trt(dtype)).get_output(0)
    return net.add("dequantize", layer.get_output(0), scales, to_trt(dtype)).get_output(0)
