"""Add quantize and dequantize layers, which TensorRT fuses with matmuls."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final

import torch

from pipeline.aten.quantized import TYPES, is_packed
from pipeline.impl import base, elementwise
from pipeline.impl.base import ITensor, Net, Value
from pipeline.impl.base import block as building_block
from pipeline.trt import to_trt, trt, trt_dtype

NAMES: Final = MappingProxyType(
    {"int8": "int8", "int4": "int4", "fp8": "float8_e4m3fn", "fp4": "float4_e2m1fn_x2", "e8m0": "float8_e8m0fnu"}
)
"""For each quantized type, the dtype in the network, by torch's name."""


def axis_of_scales(block: Sequence[int]) -> int | None:
    """Return the dim along which each index has a scale: block 1 there, -1 for all other dims; else None."""
    ones = [dim for dim, each in enumerate(block) if each == 1]
    return ones[0] if len(ones) == 1 and sum(each == -1 for each in block) == len(block) - 1 else None


@building_block
def constant_codes(net: Net, value: torch.Tensor, type: str) -> ITensor:
    """Add a constant of quantized values in the type's TensorRT dtype; the tensor may store packed 4-bit values."""
    shape = (*value.shape[:-1], 2 * value.shape[-1]) if is_packed(value, type) else tuple(value.shape)
    return net.add("constant", shape, net.ctx.trt_quantized_weights(value, NAMES[type], shape)).get_output(0)


@building_block
def layer_scale(net: Net, scale: Value, block: Sequence[int], dtype: torch.dtype) -> ITensor:
    """Return scales in the shape that TensorRT's layers expect, per tensor, per axis or per block. Scales per block
    have ``dtype``, other scales float32, since INT8 matmuls accumulate in the dtype of the scales."""
    if isinstance(scale, trt.ITensor):
        return scale
    if scale.dtype == torch.float8_e8m0fnu:
        return constant_codes(net, scale, "e8m0")
    if scale.numel() == 1:
        return base.cast(net, _reshaped_constant(net, scale, ()), torch.float32)
    if axis_of_scales(block) is not None:
        return base.cast(net, _reshaped_constant(net, scale, (scale.numel(),)), torch.float32)
    return base.tensor(net, scale, dtype)


def _reshaped_constant(net: Net, value: torch.Tensor, shape: tuple[int, ...]) -> ITensor:
    """Add a constant with another shape; a reshape layer before its reader would prevent fusion."""
    output: ITensor = net.add("constant", shape, net.ctx.trt_weights(value)).get_output(0)
    return output


@building_block
def dequantize(net: Net, x: Value, scale: Value, type: str, block: Sequence[int], dtype: torch.dtype) -> ITensor:
    """Add a layer that dequantizes a constant tensor or the result of `quantize`, with the same ``type`` and ``block``.

    RTX 1.6 multiplies INT4 by float32 in one kernel, which fails on an H200 ("cuDNN graph compilation failed"); a
    barrier keeps the matmul in a separate kernel.
    """
    x = constant_codes(net, x, type) if isinstance(x, torch.Tensor) else x
    scales = layer_scale(net, scale, block, dtype)
    result = _set_scale_axis_and_get_output(net.add("dequantize", x, scales, to_trt(dtype)), block)
    return base.barrier(net, result, "int4-by-float32") if (type, dtype) == ("int4", torch.float32) else result


@building_block
def quantize(net: Net, x: Value, scale: Value, type: str, block: Sequence[int]) -> ITensor:
    """Add a quantize layer. ``type``: a key of `NAMES`, such as "int8"; ``block``: as in `aten.quantized`."""
    x = base.tensor(net, x)
    scales = layer_scale(net, scale, block, base.dtype_of(x))
    return _set_scale_axis_and_get_output(net.add("quantize", x, scales, trt_dtype(NAMES[type])), block)


def _set_scale_axis_and_get_output(layer: Any, block: Sequence[int]) -> ITensor:
    """Return the result of a (de)quantize layer, after setting its axis if ``block`` has one (`axis_of_scales`)."""
    axis = axis_of_scales(block)
    if axis is not None:
        layer.axis = axis
    output: ITensor = layer.get_output(0)
    return output


@building_block
def fake_quantize(net: Net, x: Value, scale: Value, type: str, block: Sequence[int]) -> ITensor:
    """Add a quantize and a dequantize layer, a pair that TensorRT fuses into matmuls."""
    return dequantize(net, quantize(net, x, scale, type, block), scale, type, block, base.dtype_of(x))


@building_block
def fake_quantize_by_rounding(net: Net, x: Value, scale: Value, type: str) -> ITensor:
    """Quantize to integers and dequantize by elementwise layers with one scale, if no quantized kernel exists."""
    dtype, kind = base.dtype_of(x), TYPES[type]
    each = layer_scale(net, scale, (), torch.float32)
    scaled = elementwise.binary(net, "PROD", base.tensor(net, x, torch.float32), base.unary(net, "RECIP", each))
    low = elementwise.binary(net, "MAX", base.unary(net, "ROUND", scaled), kind.low)
    values = elementwise.binary(net, "MIN", low, kind.high)
    return base.cast(net, elementwise.binary(net, "PROD", values, each), dtype)


@building_block
def fake_quantize_blocks(net: Net, x: Value, scale: Value | None, type: str, size: int) -> ITensor:
    """Quantize to ``type`` and dequantize, with a scale per block of ``size`` elements along the last dim, computed at
    run time. Without ``scale``, a block's scale is an E8M0 number; with it, an E4M3 number times ``scale``."""
    x, dtype = base.tensor(net, x), base.dtype_of(x)
    of_scales = trt_dtype(NAMES["e8m0" if scale is None else "fp8"])
    layer = net.add("dynamic_quantize", x, base.rank(x) - 1, size, trt_dtype(NAMES[type]), of_scales)
    if scale is None:
        return net.add("dequantize", layer.get_output(0), layer.get_output(1), to_trt(dtype)).get_output(0)
    tensor_scale = layer_scale(net, scale, [-1], torch.float32)
    layer.set_input(1, tensor_scale)
    scales = net.add("dequantize", layer.get_output(1), tensor_scale, to_trt(dtype)).get_output(0)
    return net.add("dequantize", layer.get_output(0), scales, to_trt(dtype)).get_output(0)
