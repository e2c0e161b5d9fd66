"""List the quantization operators of exported models: NVIDIA ModelOpt's, torchao's (PT2E and ``quantize_``), and
torch's. Operators are recognised by the names of their schemas, so none of these libraries is needed.

Each function is called a form: it expresses a call in plain operators and operators of `pipeline.aten.quantized`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from pipeline.aten.quantized import operators
from pipeline.aten.types import Argument, Function, aten
from pipeline.decomposition.quantized_arithmetic import (
    Codes,
    Known,
    as_weights,
    blocks,
    channel,
    fake,
    fake_float8,
    integers,
    numbers,
    numbers_of,
    per_block,
    per_element,
)
from pipeline.decomposition.quantized_scales import SCALES, where_enabled, without_mask

RANGES: Final = MappingProxyType({torch.int8: (-128, 127), torch.uint8: (0, 255)})
E4M3: Final = 448.0
E2M1: Final = 6.0


def modelopt(
    known: Known, input: Tensor, amax: Tensor, bits: int, exponent: int, unsigned: bool, narrow: bool
) -> Argument:
    """quantize_op(Tensor input, Tensor amax, int num_bits, int exponent_bits, bool unsigned, bool narrow_range)
    -> Tensor"""
    if (bits, exponent) != (8, 4) and exponent:
        return NotImplemented
    block = _block_of(amax, input)
    up = (E4M3 if exponent else 2.0 ** (bits - 1 + unsigned) - 1) / torch.where(amax == 0, 1.0, amax.float())
    scale = torch.where(amax == 0, 0.0, 1.0 / up)
    high = int(2 ** (bits - 1 + unsigned) - 1)
    codes = Codes(0 if unsigned else -high - (not narrow), high, block)
    if known.has("input"):
        scaled = input.float() * up
        if exponent:
            eighths = scaled.clamp(-E4M3, E4M3).to(torch.float8_e4m3fn)
            return numbers_of(eighths, per_block(scale, input.shape, block), "fp8", block, input.dtype)
        whole = scaled.round().clamp(codes.low, codes.high)
        return as_weights(Known(known.constant), whole, scale, None, codes, input.dtype)
    given = Known(known.constant | ({"scale"} if known.has("amax") else frozenset()))
    if exponent:
        return fake_float8(given, input, scale, block)
    if (codes.low, codes.high) == (-127, 127) and scale.numel() == 1:  # one value less than the layer has
        input, codes = torch.maximum(input, (-127 * scale).to(input.dtype)), Codes(-128, 127, block)
    return fake(given, input, scale, None, codes)


def modelopt_blocks(
    known: Known, input: Tensor, size: int, amax: Tensor | None, bits: int, exponent: int, scale: int, of_scale: int
) -> Argument:
    """dynamic_block_quantize_op(Tensor input, int block_size, Tensor amax, int num_bits, int exponent_bits,
    int scale_num_bits, int scale_exponent_bits) -> Tensor"""
    forms = {(4, 2, 8, 4): "fp4", (8, 4, 9, 8): "fp8"}
    type, length = forms.get((bits, exponent, scale, of_scale)), input.shape[-1]
    if type is None or not isinstance(length, int) or length % size:
        return NotImplemented
    whole = None if type == "fp8" or amax is None else (amax.float().amax() / (E2M1 * E4M3))
    if not known.has("input"):
        return operators.fake_quantize_blocks(input, whole, type, size)
    codes, scales = operators.block_codes(input, whole, type, size)
    block = [*[1] * (input.dim() - 1), size]
    if whole is not None:
        scales = operators.dequantize(scales, whole, "fp8", [-1] * input.dim(), input.dtype)
    return operators.dequantize(codes, scales, type, block, input.dtype)


def fake_per_tensor(known: Known, input: Tensor, scale: Argument, zero: Argument, low: int, high: int) -> Argument:
    """fake_quantize_per_tensor_affine(Tensor self, float scale, int zero_point, int quant_min, int quant_max)
    -> Tensor"""
    codes = Codes(low, high, (-1,) * input.dim(), inverse=_inverse(scale))
    made = fake(known, input.float(), _tensor(scale, input), _zero(zero, input), codes)
    return made.to(input.dtype)


def fake_per_channel(
    known: Known, input: Tensor, scale: Tensor, zero: Tensor, axis: int, low: int, high: int
) -> Argument:
    """fake_quantize_per_channel_affine(Tensor self, Tensor scale, Tensor zero_point, int axis, int quant_min,
    int quant_max) -> Tensor"""
    codes = Codes(low, high, channel(input.dim(), axis))
    return fake(known, input.float(), scale, zero, codes).to(input.dtype)


def per_tensor(
    known: Known, input: Tensor, scale: Argument, zero: Argument, low: Argument, high: Argument, *types: Argument
) -> Argument:
    """quantize_per_tensor(Tensor input, float scale, int zero_point, int quant_min, int quant_max, ScalarType dtype)
    -> Tensor, and dequantize_per_tensor"""
    if not isinstance(low, int):
        return NotImplemented
    codes = Codes(low, high, (-1,) * input.dim(), inverse=_inverse(scale))
    return _step(known, input, _tensor(scale, input), _zero(zero, input), codes, *types)


def per_channel(
    known: Known, input: Tensor, scale: Tensor, zero: Tensor | None, axis: int, low: int, high: int, *types: Argument
) -> Argument:
    """quantize_per_channel(Tensor input, Tensor scales, Tensor zero_points, int axis, int quant_min, int quant_max,
    ScalarType dtype) -> Tensor, and dequantize_per_channel"""
    return _step(known, input, scale, zero, Codes(low, high, channel(input.dim(), axis)), *types)


def per_token(
    known: Known, input: Tensor, scale: Tensor, zero: Tensor, low: int, high: int, *types: Argument
) -> Argument:
    """quantize_per_token(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max,
    ScalarType dtype) -> Tensor, and dequantize_per_token"""
    codes = Codes(low, high, (*[1] * (input.dim() - 1), -1), early=True)
    return _step(known, input, scale, zero, codes, *types)


def per_group(
    known: Known,
    input: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    low: int,
    high: int,
    dtype: torch.dtype,
    group: int,
    out: Argument = None,
) -> Argument:
    """quantize_per_channel_group(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max,
    ScalarType dtype, int group_size) -> Tensor, and dequantize_per_channel_group"""
    codes = Codes(low, high, blocks(input.shape, (1, group)), early=True)
    return _step(known, input, scale, zero, codes, dtype, out)


def affine(
    known: Known,
    input: Tensor,
    block: Sequence[Argument],
    scale: Tensor,
    zero: Tensor | None,
    dtype: torch.dtype,
    low: Argument = None,
    high: Argument = None,
    out: Argument = None,
) -> Argument:
    """quantize_affine(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, ScalarType output_dtype,
    Scalar? quant_min=None, Scalar? quant_max=None) -> Tensor, and dequantize_affine"""
    if dtype not in RANGES:
        return NotImplemented
    least, most = RANGES[dtype]
    codes = Codes(least if low is None else int(low), most if high is None else int(high), blocks(input.shape, block))
    zero = None if zero is None or zero.numel() == 0 else zero
    return _step(known, input, scale, zero, codes, dtype, out)


def affine_float8(known: Known, input: Tensor, scale: Tensor, dtype: torch.dtype) -> Argument:
    """quantize_affine_float8_non_decomposed(Tensor tensor, Tensor scale, ScalarType float8_dtype=float8_e4m3fn)
    -> Tensor, and dequantize_affine_float8_non_decomposed"""
    block = _block_of(scale, input)
    if not input.dtype.is_floating_point or input.dtype.itemsize > 1:
        scaled = input.float() / per_element(scale.float(), input.shape, block)
        return NotImplemented if dtype != torch.float8_e4m3fn else scaled.clamp(-E4M3, E4M3).to(dtype)
    if input.dtype != torch.float8_e4m3fn:
        return NotImplemented
    if known.has("tensor"):
        return numbers_of(input, per_block(scale.float(), input.shape, block), "fp8", block, dtype)
    return (input.float() * per_element(scale, input.shape, block)).to(dtype)


def int8_linear(known: Known, input: Tensor, weight: Tensor, scales: Tensor) -> Argument:
    """_weight_int8pack_mm(Tensor self, Tensor mat2, Tensor scales) -> Tensor"""
    if not known.has("mat2"):
        return NotImplemented
    return aten.linear.default(input, numbers_of(weight, scales.float()[:, None], "int8", [1, -1], input.dtype))


def int8_product(known: Known, a: Tensor, b: Tensor) -> Argument:
    """_int_mm(Tensor self, Tensor mat2) -> Tensor"""
    one = torch.ones((), device=a.device)
    left, right = (
        numbers_of(x, one, "int8", [-1, -1], torch.float32) if known.has(name) else x.float()
        for x, name in ((a, "input"), (b, "mat2"))
    )
    return torch.mm(left, right).to(torch.int32)


def scaled_product(
    known: Known,
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    scale_result: Tensor | None,
    dtype: torch.dtype | None,
    fast: bool,
) -> Argument:
    """_scaled_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? bias=None,
    Tensor? scale_result=None, ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor"""
    if scale_result is not None or not a.dtype == b.dtype == torch.float8_e4m3fn or dtype is None:
        return NotImplemented
    rows, columns = _block_of(scale_a, a), _block_of(scale_b, b)
    if rows not in ((-1, -1), (1, -1)) or columns not in ((-1, -1), (-1, 1)):
        return NotImplemented
    left = _factor(known.has("input"), a, torch.ones((), device=a.device), (-1, -1))
    held = known.has("mat2", "scale_b")
    one = torch.ones((), device=b.device)
    right = _factor(known.has("mat2"), b, scale_b if held else one, columns if held else (-1, -1))
    product = torch.mm(left, right) * scale_a.float()
    product = product if held else product * scale_b.float()
    return (product if bias is None else product + bias.float()).to(dtype)


def _factor(is_known: bool, x: Tensor, scale: Tensor, block: Sequence[int]) -> Tensor:
    """Return an operand of a matmul in float32. A constant is dequantized with a scale, so that it stays quantized."""
    if not is_known:
        return x.float()
    return numbers_of(x, per_block(scale.float(), x.shape, block), "fp8", block, torch.float32)


def _step(
    known: Known, x: Tensor, scale: Tensor, zero: Tensor | None, codes: Codes, dtype: torch.dtype, out: Argument = None
) -> Argument:
    """Quantize a float ``x`` to ``dtype``, or dequantize a quantized ``x`` to ``out``; both if that is `PAIR`."""
    zero = None if known.zero == 0 else zero
    scale = scale.float() if scale.dtype == torch.float64 else scale
    if out is PAIR:
        return fake(known, x, scale, zero, codes)
    if x.dtype.is_floating_point:
        return integers(x, scale, zero, codes).to(dtype)
    wanted = torch.float32 if out is None else out
    if known.has("input"):
        return as_weights(known, x, scale, zero, codes, wanted)
    return numbers(x, scale, zero, codes, wanted)


PAIR: Final = object()
"""Marks a call that both quantizes and dequantizes."""


def _block_of(scale: Tensor, x: Tensor) -> tuple[int, ...]:
    """Return the block implied by a scale's shape: it broadcasts to its tensor's, or has an element per block."""
    if scale.numel() == 1:
        return (-1,) * x.dim()
    sizes = [1] * (x.dim() - scale.dim()) + list(scale.shape)
    return tuple(-1 if n == 1 else 1 if n == s else s // n for n, s in zip(sizes, x.shape, strict=True))


def _tensor(scale: Argument, x: Tensor) -> Tensor:
    return scale if isinstance(scale, Tensor) else torch.full((), scale, dtype=torch.float32, device=x.device)


def _inverse(scale: Argument) -> float | None:
    return None if isinstance(scale, Tensor) else 1.0 / scale


def _zero(zero: Argument, x: Tensor) -> Tensor | None:
    if isinstance(zero, Tensor):
        return zero
    return torch.full((), zero, dtype=torch.int32, device=x.device) if zero else None


FORMS: Final[MappingProxyType[str, Function]] = MappingProxyType(
    {
        "tensorrt::quantize_op": modelopt,
        "tensorrt::dynamic_block_quantize_op": modelopt_blocks,
        "tensorrt::dynamic_block_quantize_op.overload": modelopt_blocks,
        "aten::fake_quantize_per_tensor_affine": fake_per_tensor,
        "aten::fake_quantize_per_tensor_affine.tensor_qparams": fake_per_tensor,
        "aten::fake_quantize_per_channel_affine": fake_per_channel,
        "aten::fake_quantize_per_tensor_affine_cachemask": without_mask(fake_per_tensor),
        "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": where_enabled(fake_per_tensor),
        "aten::fake_quantize_per_channel_affine_cachemask": without_mask(fake_per_channel),
        "quantized_decomposed::fake_quant_per_channel": fake_per_channel,
        **{
            f"quantized_decomposed::{step}_per_tensor{overload}": per_tensor
            for step in ("quantize", "dequantize")
            for overload in ("", ".tensor", ".tensor2")
        },
        **{
            f"quantized_decomposed::{step}_{name}": form
            for step in ("quantize", "dequantize")
            for name, form in (("per_channel", per_channel), ("per_token", per_token), ("per_channel_group", per_group))
        },
        **SCALES,
        "torchao::quantize_affine": affine,
        "torchao::dequantize_affine": affine,
        "torchao::quantize_affine_float8_non_decomposed": affine_float8,
        "torchao::dequantize_affine_float8_non_decomposed": affine_float8,
        "aten::_weight_int8pack_mm": int8_linear,
        "aten::_int_mm": int8_product,
        "aten::_scaled_mm": scaled_product,
    }
)
"""The form of each quantization operator."""

PAIRS: Final = MappingProxyType(
    {name.replace("::quantize", "::dequantize"): name for name in FORMS if "::quantize_" in name and "ao" not in name}
    | {"torchao::dequantize_affine": "torchao::quantize_affine"}
)
"""The dequantizing operators, each with the quantizing operator that it undoes."""
