"""Express quantization as quantized values and a scale where TensorRT has layers for it, else as plain arithmetic.

Quantized weights are never folded to floats. Activations become a quantize/dequantize pair if their scale is a constant
number and their values use the full range of a type. Activations with zero points, data-dependent scales or a narrower
range are computed elementwise, as their library does. That is correct and stays in one engine, but no matmul runs in
low precision.

Operators with several results are PT2E's, which compute scales, and fake quantizers that also return a mask for
gradients. Scales are float32; the library has float64, which TensorRT lacks. Zero points are integers, stored as
float32.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

import torch
from attrs import frozen
from torch import Tensor

from pipeline.aten.quantized import TYPES, operators
from pipeline.aten.types import Argument, Function, Node


@frozen
class Facts:
    """What is known of a quantization call: constant arguments, and the zero point if all elements share it."""

    constant: frozenset[str] = frozenset()
    zero: int | None = 0

    def has_constant(self, *names: str) -> bool:
        """Return whether all arguments with these names are constant."""
        return self.constant.issuperset(names)


@frozen
class Scheme:
    """The parameters of a quantization: ``low`` and ``high``, the range of quantized values, and ``block``, the number
    of elements along each dim that share a scale (-1: all).

    ``inverse``: the reciprocal of the scale in float64 if the scale is a Python number; None if it is a tensor.
    ``adds_zero_first``: quantizing adds zero points before it rounds, as per-token quantizers do, not afterwards.
    """

    low: int
    high: int
    block: tuple[int, ...]
    inverse: float | None = None
    adds_zero_first: bool = False

    def type_without_zero_point(self, zero: int) -> str | None:
        """Return the smallest type that holds the quantized values minus a zero point; None if no type does."""
        low, high = self.low - zero, self.high - zero
        return next((name for name in ("int4", "int8") if TYPES[name].low <= low and high <= TYPES[name].high), None)

    def uses_full_int8(self, zero: int | None) -> bool:
        """Return whether the quantized values minus a zero point range from -128 to 127, as INT8 does in TensorRT."""
        return zero is not None and (self.low - zero, self.high - zero) == (-128, 127)


def normalize_block(shape: Sequence[Argument], block: Sequence[Argument]) -> tuple[int, ...]:
    """Return ``block`` with -1 for each dim along which all elements of a tensor of this shape share a scale."""
    return tuple(
        b if isinstance(b, int) and not (isinstance(s, int) and b >= s) else -1
        for s, b in zip(shape, block, strict=True)
    )


def block_per_channel(rank: int, axis: int) -> tuple[int, ...]:
    """Return the block shape of per-channel scales: 1 along the axis, -1 (shared) along the other dims."""
    return tuple(1 if dim == axis % rank else -1 for dim in range(rank))


def reshape_per_block(block_values: Tensor, shape: Sequence[Argument], block: Sequence[int]) -> Tensor:
    """Reshape scales or zero points to one element per block of a tensor of this shape; a single one becomes 0-d."""
    if block_values.numel() == 1:
        return block_values.reshape(())
    return block_values.reshape([1 if b == -1 else -(-s // b) for s, b in zip(shape, block, strict=True)])


def expand_per_element(block_values: Tensor, shape: Sequence[Argument], block: Sequence[int]) -> Tensor:
    """Expand scales or zero points, one per block, so that they broadcast to a tensor of the shape ``shape``."""
    block_values = reshape_per_block(block_values, shape, block)
    for dim, each in enumerate(block):
        if block_values.dim() and each > 1:
            block_values = block_values.repeat_interleave(each, dim).narrow(dim, 0, shape[dim])
    return block_values


def fake_quantize(known: Facts, x: Tensor, scale: Tensor, zero: Tensor | None, scheme: Scheme) -> Tensor:
    """Return ``x`` quantized and dequantized, in its dtype. ``known``: which arguments are constant, and the number in
    ``zero`` if all elements share it; they decide which operators are used. ``scheme``: the range and block shape."""
    if known.has_constant("input"):
        return dequantize_weight(known, quantize_values(x, scale, zero, scheme), scale, zero, scheme, x.dtype)
    if known.has_constant("scale") and scale.numel() == 1 and scheme.uses_full_int8(known.zero):
        return apply_qdq_layers(x, scale, "int8")
    return dequantize_values(quantize_values(x, scale, zero, scheme), scale, zero, scheme, x.dtype)


def quantize_values(x: Tensor, scale: Tensor, zero: Tensor | None, scheme: Scheme) -> Tensor:
    """Return the quantized values as floats, including zero points: ``clamp(round(x / scale) + zero)``."""
    inverse = 1.0 / expand_per_element(scale, x.shape, scheme.block) if scheme.inverse is None else scheme.inverse
    result = x * inverse if scheme.adds_zero_first else (x * inverse).round()
    if zero is not None:
        result = result + expand_per_element(zero.to(result.dtype), x.shape, scheme.block)
    return (result.round() if scheme.adds_zero_first else result).clamp(scheme.low, scheme.high)


def dequantize_values(q: Tensor, scale: Tensor, zero: Tensor | None, scheme: Scheme, dtype: torch.dtype) -> Tensor:
    """Return ``(q - zero) * scale`` in ``dtype``. ``scheme.block``: which elements share a scale and a zero point."""
    wide = torch.float32 if not scale.dtype.is_floating_point else torch.promote_types(scale.dtype, dtype)
    q = q.to(wide)
    if zero is not None:
        q = q - expand_per_element(zero, q.shape, scheme.block).to(wide)
    return (q * expand_per_element(scale, q.shape, scheme.block)).to(dtype)


def dequantize_weight(
    known: Facts, q: Tensor, scale: Tensor, zero: Tensor | None, scheme: Scheme, dtype: torch.dtype
) -> Tensor:
    """Return ``(q - zero) * scale`` in ``dtype`` for constant quantized values ``q``, which the program keeps (see
    `dequantize_unfolded`). ``known``: see `Facts`; ``scheme``: the range and the block shape. Zero points are
    subtracted before dequantizing if the difference fits into INT8, else afterwards."""
    each, block = reshape_per_block(scale, q.shape, scheme.block), list(scheme.block)
    less = 0 if known.zero is None else known.zero
    type = None if known.zero is None else scheme.type_without_zero_point(less)
    if type is not None:
        return dequantize_unfolded((q.to(torch.int32) - less if less else q).to(torch.int8), each, type, block, dtype)
    zeros = torch.full((), less, dtype=torch.int32, device=q.device) if zero is None else zero
    if scheme.high - scheme.low <= TYPES["int8"].high:
        centered = operators.centered(q.to(torch.int32), reshape_per_block(zeros, q.shape, scheme.block), "int8", block)
        return dequantize_unfolded(centered, each, "int8", block, dtype)
    middle = 128 if scheme.high > 127 else 0
    signed = (q.to(torch.int32) - middle if middle else q).to(torch.int8)
    shifts = expand_per_element((zeros - middle).to(torch.float32), q.shape, scheme.block)
    shift = shifts * expand_per_element(scale, q.shape, scheme.block)
    return (dequantize_unfolded(signed, each, "int8", block, torch.float32) - shift).to(dtype)


def dequantize_unfolded(codes: Tensor, scale: Tensor, type: str, block: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Dequantize ``codes``, values of a ``type`` in `TYPES`, by the operator ``dequantize``. Constant folding leaves it
    in the graph, so that weights stay quantized. ``block``: how many elements along each dim share a scale."""
    made: Tensor = operators.dequantize(codes, scale, type, list(block), dtype)
    return made


def apply_qdq_layers(x: Tensor, scale: Tensor, type: str) -> Tensor:
    """Return ``x`` quantized and dequantized by TensorRT's Q/DQ layers, with a single scale for all elements."""
    made: Tensor = operators.fake_quantize(x, scale.reshape(()), type, [-1] * x.dim())
    return made


def fake_quantize_float8(known: Facts, x: Tensor, scale: Tensor, block: Sequence[int]) -> Tensor:
    """Quantize ``x`` to E4M3 with a scale per block, and dequantize it. ``known``: which arguments are constant."""
    each = reshape_per_block(scale, x.shape, block)
    if known.has_constant("input"):
        codes = operators.quantize(x, each, "fp8", list(block), True)
        return dequantize_unfolded(codes, each, "fp8", block, x.dtype)
    if known.has_constant("scale") and scale.numel() == 1:
        return apply_qdq_layers(x, scale, "fp8")
    spread = expand_per_element(scale, x.shape, block).to(torch.float32)
    inside = apply_qdq_layers(x.to(torch.float32) / spread, torch.ones((), dtype=torch.float32, device=x.device), "fp8")
    return (inside * spread).to(x.dtype)


Results: TypeAlias = tuple[Tensor, Tensor]
MIN_SCALE: Final = 2.0**-23


def per_tensor_qparams(known: Facts, input: Tensor, low: int, high: int, eps: float, dtype: torch.dtype) -> Results:
    """Compute PT2E's ``choose_qparams`` by plain operators. ``known``: the constant arguments. Schema: (Tensor input,
    int quant_min, int quant_max, float eps, ScalarType dtype) -> (Tensor scale, Tensor zero_point)"""
    least, most = _include_zero(input.amin(), input.amax())
    scale = ((most - least) / (high - low)).float().clamp(min=eps)
    zero = (low - (least / scale).round()).clamp(low, high)
    return scale.reshape(1), zero.reshape(1)


def per_tensor_symmetric_qparams(
    known: Facts, input: Tensor, low: int, high: int, eps: float, dtype: torch.dtype
) -> Results:
    """Compute PT2E's ``choose_qparams_symmetric`` by plain operators. ``known``: the constant arguments. Schema:
    (Tensor input, int quant_min, int quant_max, float eps, ScalarType dtype) -> (Tensor scale, Tensor zero_point)"""
    scale = (input.abs().amax() / ((high - low) / 2)).float().clamp(min=eps).reshape(1)
    return scale, torch.full_like(scale, 128 if dtype == torch.uint8 else 0)


def per_token_qparams(known: Facts, input: Tensor, dtype: torch.dtype) -> Results:
    """Compute PT2E's ``choose_qparams_per_token`` by plain operators. ``known``: the constant arguments. Schema:
    (Tensor input, ScalarType dtype) -> (Tensor scale, Tensor zero_point)"""
    most = input.abs().amax(-1, keepdim=True)
    scale = (most.float() if most.dtype == torch.float16 else most).clamp(min=1e-5) / 127
    return scale, torch.zeros_like(scale)


def per_token_asymmetric_qparams(known: Facts, input: Tensor, dtype: torch.dtype) -> Results:
    """Compute PT2E's ``choose_qparams_per_token_asymmetric`` by plain operators. ``known``: the constant arguments.
    Schema: (Tensor input, ScalarType dtype) -> (Tensor scale, Tensor zero_point)"""
    least, most = _include_zero(input.amin(-1, keepdim=True), input.amax(-1, keepdim=True))
    scale = ((most - least) / 255).clamp(min=MIN_SCALE)
    down, up = least / scale, most / scale
    zero = torch.where((down - 128) + (up + 127) > 0, -128 - down, 127 - up)
    return scale.float(), zero.clamp(-128, 127).round().float()


def _include_zero(least: Tensor, most: Tensor) -> Results:
    """Return the minimum and maximum of a range, extended so that it contains 0."""
    return least.clamp(max=0), most.clamp(min=0)


SCALE_FORMS: Final[MappingProxyType[str, Function]] = MappingProxyType(
    {
        "quantized_decomposed::choose_qparams.tensor": per_tensor_qparams,
        "quantized_decomposed::choose_qparams_symmetric.tensor": per_tensor_symmetric_qparams,
        "quantized_decomposed::choose_qparams_per_token": per_token_qparams,
        "quantized_decomposed::choose_qparams_per_token_asymmetric": per_token_asymmetric_qparams,
    }
)
"""For each operator that computes scales and zero points, the form that expresses it in plain operators."""


def form_without_mask(form: Function) -> Function:
    """Return a function that returns ``(form(...), None)``, for a fake quantizer whose second result is an unread
    mask."""

    def wrapped(known: Facts, *args: Argument) -> Argument:
        return form(known, *args), None

    wrapped.__name__, wrapped.__doc__ = f"{form.__name__}_without_mask", f"{form.__doc__}, and a mask"
    return wrapped


def quantize_if_enabled(form: Function) -> Function:
    """Return a form (see `FORMS`) for fake quantizers that also have a switch, ``fake_quant_enabled``, and a second
    result, a mask that nothing reads. It returns ``(form(...), None)`` if the switch is on, else ``(input, None)``."""

    def wrapped(
        known: Facts, input: Tensor, scale: Tensor, zero: Tensor, on: Argument, low: int, high: int
    ) -> Argument:
        if not isinstance(on, int):
            return NotImplemented
        return (form(known, input, scale, zero, low, high) if on else input.clone()), None

    wrapped.__name__ = f"{form.__name__}_where_enabled"
    return wrapped


def can_use_form(node: Node, name: str, forms: MappingProxyType[str, Function]) -> bool:
    """Return whether ``forms[name]``, a function that calls plain operators, can replace ``node``, a call of the
    operator with the schema name ``name``. If the call has several results, nothing may read a fake quantizer's mask,
    and only operators in ``forms`` may read scales and zero points."""
    if not isinstance(node.meta.get("val"), tuple | list):
        return True
    parts = list(node.users)
    if any(part.target is not operator.getitem for part in parts):
        return False
    if name not in SCALE_FORMS:
        return all(part.args[1] == 0 or not part.users for part in parts)
    return all(schema_name(user.target) in forms for part in parts for user in part.users)


def schema_name(target: object) -> str:
    """Return an operator's schema name (``torchao::quantize_affine``) and overload; empty for other values."""
    return target.name() if isinstance(target, torch._ops.OpOverload) else ""
