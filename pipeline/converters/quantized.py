"""Convert the quantization operators of `pipeline.aten.quantized`, which replace the exporters' own patterns."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.aten.quantized import TYPES, is_packed, operators
from pipeline.aten.traits import Kind, op_kind
from pipeline.converters.binding import CompilationSettings, Rejection, argument, converts
from pipeline.impl import quantize as impl
from pipeline.impl.base import ITensor, Net, Value
from pipeline.trt import CAPABILITIES, LIBRARY

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
FP4_FROM = (12, 0)
"""The minimum GPU compute capability that supports FP4."""
PASSING = (Kind.COPIES, Kind.CASTS, Kind.RESHAPES, Kind.SQUEEZES, Kind.TRANSPOSES)


def check_quantization_support(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Quantized networks need TensorRT-RTX 1.6 or later; FP4 also needs GPUs of compute capability 12.0 or later."""
    if not CAPABILITIES.quantization:
        return Rejection(f"{LIBRARY} does not support quantized networks", "run pip install 'tensorrt-rtx>=1.6.1'")
    numbered = (c for c in settings.compute_capabilities if c[:1].isdigit())
    older = [c for c in numbered if tuple(int(part) for part in c.split(".") if part.isdigit()) < FP4_FROM]
    if argument(node, "type") == "fp4" and (older or not settings.compute_capabilities):
        wanted = f"{', '.join(older)} is requested" if older else "engines are built for older GPUs by default"
        return Rejection(
            f"FP4 needs a GPU of compute capability 12.0, but {wanted}", 'pass compute_capabilities=("12.0",)'
        )
    return True


def check_dequantize(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Quantized values must be constants, as TensorRT-RTX passes none between layers; blocks must divide the dims."""
    codes, scale = argument(node, "input"), argument(node, "scale")
    if isinstance(codes, torch.fx.Node) and codes.op != "placeholder":
        return Rejection("the quantized values are computed, but TensorRT-RTX needs constants: use fake_quantize")
    type, shape, block = argument(node, "type"), node.meta["val"].shape, argument(node, "block")
    if TYPES[type].bits == 4 and not is_packed(codes.meta["val"], type):
        return Rejection(f"a row has an odd number of {type} values, and TensorRT stores two in each byte")
    sizes = scale.meta["val"].shape
    for dim, (size, each) in enumerate(zip(shape, block, strict=True)):
        if len(sizes) and each > 1 and size % each:
            return Rejection(f"the block size {each} does not divide dim {dim} of the weight, {size}")
    return _check_quantizable_dtype(node) and check_quantization_support(node, settings)


def _check_quantizable_dtype(node: torch.fx.Node) -> bool | Rejection:
    dtype = node.meta["val"].dtype
    return dtype in FLOATS or Rejection(f"the tensor is {dtype}; TensorRT quantizes only {FLOATS}")


def check_fake_quantize(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The scale must be one constant for the whole tensor."""
    scale = argument(node, "scale")
    if isinstance(scale, torch.fx.Node) and scale.op != "placeholder":
        return Rejection("the quantization scale is computed at run time; TensorRT supports constant scales only")
    return _check_quantizable_dtype(node) and check_quantization_support(node, settings)


def reaches_quantized_convolution(node: torch.fx.Node | None) -> bool:
    """Return whether the result of a quantize/dequantize pair reaches a convolution with a quantized weight, through
    operators that do not change values."""
    for user in () if node is None else node.users:
        kind = op_kind(user.target)
        if kind is Kind.CONVOLVES and (weight := argument(user, "weight")) is not node:
            if isinstance(weight, torch.fx.Node) and weight.target is operators.dequantize.default:
                return True
        elif kind in PASSING and reaches_quantized_convolution(user):
            return True
    return False


def check_block_quantization(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The rank must be 2 or 3, and blocks must divide the last dim."""
    size, value = argument(node, "size"), node.meta["val"]
    if value.dim() not in (2, 3):
        return Rejection(f"the tensor's rank is {value.dim()}; TensorRT computes block scales only for ranks 2 and 3")
    if value.shape[-1] % size:
        return Rejection(f"the block size {size} does not divide the last dim, {value.shape[-1]}")
    return _check_quantizable_dtype(node) and check_quantization_support(node, settings)


@converts(operators.dequantize.default, validator=check_dequantize)
def dequantize(net: Net, input: Value, scale: Value, type: str, block: Sequence[int], dtype: torch.dtype) -> ITensor:
    """pipeline::dequantize(Tensor input, Tensor scale, str type, int[] block, ScalarType dtype) -> Tensor"""
    return impl.dequantize(net, input, scale, type, block, dtype)


@converts(operators.fake_quantize.default, validator=check_fake_quantize)
def fake_quantize(net: Net, input: Value, scale: Value, type: str, block: Sequence[int]) -> ITensor:
    """pipeline::fake_quantize(Tensor input, Tensor scale, str type, int[] block) -> Tensor"""
    if not CAPABILITIES.code_convolutions and type == "int8" and reaches_quantized_convolution(net.ctx.node):
        return impl.fake_quantize_by_rounding(net, input, scale, type)
    return impl.fake_quantize(net, input, scale, type, block)


@converts(operators.fake_quantize_blocks.default, validator=check_block_quantization)
def fake_quantize_blocks(net: Net, input: Value, scale: Value | None, type: str, size: int) -> ITensor:
    """pipeline::fake_quantize_blocks(Tensor input, Tensor? scale, str type, int size) -> Tensor"""
    return impl.fake_quantize_blocks(net, input, scale, type, size)
