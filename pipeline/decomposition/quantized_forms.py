"""Rewrite the quantization operators of NVIDIA ModelOpt, torchao (PT2E, ``quantize_``) and torch as plain operators.

Operators are recognised by the names of their schemas, so none of these libraries is needed.

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
    SCALE_FORMS,
    Facts,
    Scheme,
    block_per_channel,
    dequantize_unfolded,
    dequantize_values,
    dequantize_weight,
    expand_per_element,
    fake_quantize,
    fake_quantize_float8,
    form_without_mask,
    normalize_block,
    quantize_if_enabled,
    quantize_values,
    reshape_per_block,
)

RANGES: Final = MappingProxyType({torch.int8: (-128, 127), torch.uint8: (0, 255)})
E4M3: Final = 448.0
E2M1: Final = 6.0


def modelopt_quantize(
    known: Facts, input: Tensor, amax: Tensor, num_bits: int, exponent_bits: int, unsigned: bool, narrow_range: bool
) -> Argument:
    """Compute ModelOpt's ``quantize_op`` by plain operators. ``known``: the constant arguments. Schema: (Tensor input,
    Tensor amax, int num_bits, int exponent_bits, bool unsigned, bool narrow_range) -> Tensor"""
    if (num_bits, exponent_bits) != (8, 4) and exponent_bits:
        return NotImplemented
    block = _block_shape_of_scale(amax, input)
    up = (E4M3 if exponent_bits else 2.0 ** (num_bits - 1 + unsigned) - 1) / torch.where(amax == 0, 1.0, amax.float())
    scale = torch.where(amax == 0, 0.0, 1.0 / up)
    high = int(2 ** (num_bits - 1 + unsigned) - 1)
    scheme = Scheme(0 if unsigned else -high - (not narrow_range), high, block)
    if known.has_constant("input"):
        scaled = input.float() * up
        if exponent_bits:
            eighths = scaled.clamp(-E4M3, E4M3).to(torch.float8_e4m3fn)
            return dequantize_unfolded(eighths, reshape_per_block(scale, input.shape, block), "fp8", block, input.dtype)
        whole = scaled.round().clamp(scheme.low, scheme.high)
        return dequantize_weight(Facts(known.constant), whole, scale, None, scheme, input.dtype)
    given = Facts(known.constant | ({"scale"} if known.has_constant("amax") else frozenset()))
    if exponent_bits:
        return fake_quantize_float8(given, input, scale, block)
    if (scheme.low, scheme.high) == (-127, 127) and scale.numel() == 1:  # one value less than the layer has
        input, scheme = torch.maximum(input, (-127 * scale).to(input.dtype)), Scheme(-128, 127, block)
    return fake_quantize(given, input, scale, None, scheme)


def modelopt_block_quantize(known: Facts, input: Tensor, size: int, amax: Tensor | None, *bit_counts: int) -> Argument:
    """Compute ModelOpt's ``dynamic_block_quantize_op`` by plain operators. ``known``: the constant arguments. Schema:
    (Tensor input, int block_size, Tensor amax, int num_bits, int exponent_bits, int scale_num_bits, int
    scale_exponent_bits) -> Tensor"""
    forms: dict[tuple[int, ...], str] = {(4, 2, 8, 4): "fp4", (8, 4, 9, 8): "fp8"}
    type, length = forms.get(bit_counts), input.shape[-1]
    if type is None or not isinstance(length, int) or length % size:
        return NotImplemented
    whole = None if type == "fp8" or amax is None else (amax.float().amax() / (E2M1 * E4M3))
    if not known.has_constant("input"):
        return operators.fake_quantize_blocks(input, whole, type, size)
    codes, scales = operators.block_codes(input, whole, type, size)
    block = [*[1] * (input.dim() - 1), size]
    if whole is not None:
        scales = operators.dequantize(scales, whole, "fp8", [-1] * input.dim(), input.dtype)
    return operators.dequantize(codes, scales, type, block, input.dtype)


def fake_quantize_tensor(known: Facts, input: Tensor, scale: Argument, zero: Argument, low: int, high: int) -> Argument:
    """Compute torch's ``fake_quantize_per_tensor_affine`` by plain operators. ``known``: the constant arguments.
    Schema: (Tensor self, float scale, int zero_point, int quant_min, int quant_max) -> Tensor"""
    scheme = Scheme(low, high, (-1,) * input.dim(), inverse=_scale_inverse(scale))
    made = fake_quantize(known, input.float(), _scale_tensor(scale, input), _zero_point_tensor(zero, input), scheme)
    return made.to(input.dtype)


def fake_quantize_channels(
    known: Facts, input: Tensor, scale: Tensor, zero: Tensor, axis: int, low: int, high: int
) -> Argument:
    """Compute torch's ``fake_quantize_per_channel_affine`` by plain operators. ``known``: the constant arguments.
    Schema: (Tensor self, Tensor scale, Tensor zero_point, int axis, int quant_min, int quant_max) -> Tensor"""
    scheme = Scheme(low, high, block_per_channel(input.dim(), axis))
    return fake_quantize(known, input.float(), scale, zero, scheme).to(input.dtype)


def q_or_dq_per_tensor(
    known: Facts, input: Tensor, scale: Argument, zero: Argument, low: Argument, high: Argument, *types: Argument
) -> Argument:
    """Compute PT2E's ``quantize_per_tensor`` or ``dequantize_per_tensor`` by plain operators. ``known``: the constant
    arguments. Schema: (Tensor input, float scale, int zero_point, int quant_min, int quant_max, ScalarType dtype) ->
    Tensor"""
    if not isinstance(low, int):
        return NotImplemented
    scheme = Scheme(low, high, (-1,) * input.dim(), inverse=_scale_inverse(scale))
    return _q_or_dq(known, input, _scale_tensor(scale, input), _zero_point_tensor(zero, input), scheme, *types)


def q_or_dq_per_channel(
    known: Facts, input: Tensor, scale: Tensor, zero: Tensor | None, axis: int, low: int, high: int, *types: Argument
) -> Argument:
    """Compute PT2E's ``quantize_per_channel`` or ``dequantize_per_channel`` by plain operators. ``known``: the constant
    arguments. Schema: (Tensor input, Tensor scales, Tensor zero_points, int axis, int quant_min, int quant_max,
    ScalarType dtype) -> Tensor"""
    return _q_or_dq(known, input, scale, zero, Scheme(low, high, block_per_channel(input.dim(), axis)), *types)


def q_or_dq_per_token(
    known: Facts, input: Tensor, scale: Tensor, zero: Tensor, low: int, high: int, *types: Argument
) -> Argument:
    """Compute PT2E's ``quantize_per_token`` or ``dequantize_per_token`` by plain operators. ``known``: the constant
    arguments. Schema: (Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max, ScalarType dtype)
    -> Tensor"""
    scheme = Scheme(low, high, (*[1] * (input.dim() - 1), -1), adds_zero_first=True)
    return _q_or_dq(known, input, scale, zero, scheme, *types)


def q_or_dq_per_group(
    known: Facts,
    input: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    low: int,
    high: int,
    dtype: torch.dtype,
    group: int,
    out: Argument = None,
) -> Argument:
    """Compute PT2E's ``quantize_per_channel_group`` or ``dequantize_per_channel_group`` by plain operators. ``known``:
    the constant arguments. Schema: (Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max,
    ScalarType dtype, int group_size) -> Tensor"""
    scheme = Scheme(low, high, normalize_block(input.shape, (1, group)), adds_zero_first=True)
    return _q_or_dq(known, input, scale, zero, scheme, dtype, out)


def q_or_dq_affine(
    known: Facts,
    input: Tensor,
    block: Sequence[Argument],
    scale: Tensor,
    zero: Tensor | None,
    dtype: torch.dtype,
    low: Argument = None,
    high: Argument = None,
    out: Argument = None,
) -> Argument:
    """Compute torchao's ``quantize_affine`` or ``dequantize_affine`` by plain operators. ``known``: the constant
    arguments. Schema: (Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, ScalarType output_dtype,
    Scalar? quant_min=None, Scalar? quant_max=None) -> Tensor"""
    if dtype not in RANGES:
        return NotImplemented
    least, most = RANGES[dtype]
    scheme = Scheme(
        least if low is None else int(low), most if high is None else int(high), normalize_block(input.shape, block)
    )
    zero = None if zero is None or zero.numel() == 0 else zero
    return _q_or_dq(known, input, scale, zero, scheme, dtype, out)


def q_or_dq_affine_float8(known: Facts, input: Tensor, scale: Tensor, dtype: torch.dtype) -> Argument:
    """Compute torchao's ``quantize_affine_float8_non_decomposed`` (for a wider float) or
    ``dequantize_affine_float8_non_decomposed`` (for E4M3) by plain operators. ``known``: the constant arguments.
    Schema: (Tensor tensor, Tensor scale, ScalarType float8_dtype=float8_e4m3fn) -> Tensor"""
    block = _block_shape_of_scale(scale, input)
    if not input.dtype.is_floating_point or input.dtype.itemsize > 1:
        scaled = input.float() / expand_per_element(scale.float(), input.shape, block)
        return NotImplemented if dtype != torch.float8_e4m3fn else scaled.clamp(-E4M3, E4M3).to(dtype)
    if input.dtype != torch.float8_e4m3fn:
        return NotImplemented
    if known.has_constant("tensor"):
        return dequantize_unfolded(input, reshape_per_block(scale.float(), input.shape, block), "fp8", block, dtype)
    return (input.float() * expand_per_element(scale, input.shape, block)).to(dtype)


def int8_linear(known: Facts, input: Tensor, weight: Tensor, scales: Tensor) -> Argument:
    """Compute torch's ``_weight_int8pack_mm`` by plain operators. ``known``: the constant arguments. Schema: (Tensor
    self, Tensor mat2, Tensor scales) -> Tensor"""
    if not known.has_constant("mat2"):
        return NotImplemented
    return aten.linear.default(
        input, dequantize_unfolded(weight, scales.float()[:, None], "int8", [1, -1], input.dtype)
    )


def int8_matmul(known: Facts, a: Tensor, b: Tensor) -> Argument:
    """Compute torch's ``_int_mm`` by plain operators. ``known``: the constant arguments. Schema: (Tensor self, Tensor
    mat2) -> Tensor"""
    one = torch.ones((), device=a.device)
    left, right = (
        dequantize_unfolded(x, one, "int8", [-1, -1], torch.float32) if known.has_constant(name) else x.float()
        for x, name in ((a, "input"), (b, "mat2"))
    )
    return torch.mm(left, right).to(torch.int32)


def scaled_matmul(
    known: Facts,
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    scale_result: Tensor | None,
    dtype: torch.dtype | None,
    fast: bool,
) -> Argument:
    """Compute torch's ``_scaled_mm`` by plain operators. ``known``: the constant arguments. Schema: (Tensor self,
    Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? bias=None, Tensor? scale_result=None, ScalarType?
    out_dtype=None, bool use_fast_accum=False) -> Tensor"""
    if scale_result is not None or not a.dtype == b.dtype == torch.float8_e4m3fn or dtype is None:
        return NotImplemented
    rows, columns = _block_shape_of_scale(scale_a, a), _block_shape_of_scale(scale_b, b)
    if rows not in ((-1, -1), (1, -1)) or columns not in ((-1, -1), (-1, 1)):
        return NotImplemented
    left = _matmul_operand(known.has_constant("input"), a, torch.ones((), device=a.device), (-1, -1))
    held = known.has_constant("mat2", "scale_b")
    one = torch.ones((), device=b.device)
    right = _matmul_operand(known.has_constant("mat2"), b, scale_b if held else one, columns if held else (-1, -1))
    product = torch.mm(left, right) * scale_a.float()
    product = product if held else product * scale_b.float()
    return (product if bias is None else product + bias.float()).to(dtype)


def _matmul_operand(is_constant: bool, x: Tensor, scale: Tensor, block: Sequence[int]) -> Tensor:
    """Return a matmul operand in float32: ``x`` cast or, if it is constant, dequantized by `dequantize_unfolded`, so
    that the program keeps the quantized ``x``. ``block``: how many elements along each dim share a scale (-1: all)."""
    if not is_constant:
        return x.float()
    return dequantize_unfolded(x, reshape_per_block(scale.float(), x.shape, block), "fp8", block, torch.float32)


def _q_or_dq(
    known: Facts,
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    scheme: Scheme,
    dtype: torch.dtype,
    out: Argument = None,
) -> Argument:
    """Return a float ``x`` quantized to ``dtype``, or a quantized ``x`` dequantized to ``out`` (None: float32). If
    ``out`` is `PAIR`, which stands for no dtype, return ``x`` quantized and dequantized. ``known``: which arguments are
    constant (`Facts`); ``scheme``: the range and the block shape (`Scheme`)."""
    zero = None if known.zero == 0 else zero
    scale = scale.float() if scale.dtype == torch.float64 else scale
    if out is PAIR:
        return fake_quantize(known, x, scale, zero, scheme)
    if x.dtype.is_floating_point:
        return quantize_values(x, scale, zero, scheme).to(dtype)
    wanted = torch.float32 if out is None else out
    if known.has_constant("input"):
        return dequantize_weight(known, x, scale, zero, scheme, wanted)
    return dequantize_values(x, scale, zero, scheme, wanted)


PAIR: Final = object()
"""Stands for the output dtype of a merged call, which quantizes and dequantizes."""


def _block_shape_of_scale(scale: Tensor, x: Tensor) -> tuple[int, ...]:
    """Return the block shape that ``scale`` implies: ``scale`` broadcasts to ``x``, or has an element per block."""
    if scale.numel() == 1:
        return (-1,) * x.dim()
    sizes = [1] * (x.dim() - scale.dim()) + list(scale.shape)
    return tuple(-1 if n == 1 else 1 if n == s else s // n for n, s in zip(sizes, x.shape, strict=True))


def _scale_tensor(scale: Argument, x: Tensor) -> Tensor:
    """Return a scale as a tensor; a Python number becomes a 0-d float32 tensor on the device of ``x``."""
    return scale if isinstance(scale, Tensor) else torch.full((), scale, dtype=torch.float32, device=x.device)


def _scale_inverse(scale: Argument) -> float | None:
    """Return the reciprocal of a scale that is a Python number; None for a tensor."""
    return None if isinstance(scale, Tensor) else 1.0 / scale


def _zero_point_tensor(zero: Argument, x: Tensor) -> Tensor | None:
    """Return a zero point as a tensor on the device of ``x``; None if it is the number 0."""
    if isinstance(zero, Tensor):
        return zero
    return torch.full((), zero, dtype=torch.int32, device=x.device) if zero else None


FORMS: Final[MappingProxyType[str, Function]] = MappingProxyType(
    {
        "tensorrt::quantize_op": modelopt_quantize,
        "tensorrt::dynamic_block_quantize_op": modelopt_block_quantize,
        "tensorrt::dynamic_block_quantize_op.overload": modelopt_block_quantize,
        "aten::fake_quantize_per_tensor_affine": fake_quantize_tensor,
        "aten::fake_quantize_per_tensor_affine.tensor_qparams": fake_quantize_tensor,
        "aten::fake_quantize_per_channel_affine": fake_quantize_channels,
        "aten::fake_quantize_per_tensor_affine_cachemask": form_without_mask(fake_quantize_tensor),
        "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": quantize_if_enabled(fake_quantize_tensor),
        "aten::fake_quantize_per_channel_affine_cachemask": form_without_mask(fake_quantize_channels),
        "quantized_decomposed::fake_quant_per_channel": fake_quantize_channels,
        **{
            f"quantized_decomposed::{step}_per_tensor{overload}": q_or_dq_per_tensor
            for step in ("quantize", "dequantize")
            for overload in ("", ".tensor", ".tensor2")
        },
        **{
            f"quantized_decomposed::{step}_{name}": form
            for step in ("quantize", "dequantize")
            for name, form in (
                ("per_channel", q_or_dq_per_channel),
                ("per_token", q_or_dq_per_token),
                ("per_channel_group", q_or_dq_per_group),
            )
        },
        **SCALE_FORMS,
        "torchao::quantize_affine": q_or_dq_affine,
        "torchao::dequantize_affine": q_or_dq_affine,
        "torchao::quantize_affine_float8_non_decomposed": q_or_dq_affine_float8,
        "torchao::dequantize_affine_float8_non_decomposed": q_or_dq_affine_float8,
        "aten::_weight_int8pack_mm": int8_linear,
        "aten::_int_mm": int8_matmul,
        "aten::_scaled_mm": scaled_matmul,
    }
)
"""For each quantization operator, by schema name, the form that expresses it in plain operators."""

QUANTIZER_OF: Final = MappingProxyType(
    {name.replace("::quantize", "::dequantize"): name for name in FORMS if "::quantize_" in name and "ao" not in name}
    | {"torchao::dequantize_affine": "torchao::quantize_affine"}
)
"""For each dequantizing operator, the quantizing operator whose results it dequantizes."""
