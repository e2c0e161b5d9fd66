"""Rewrite quantization operators with several results: those that compute scales, and fake quantizers with a mask.

The former are PT2E's. Torch decomposes its fake quantizers to ones that also return a mask for gradients.

Scales are float32; the library has float64, which TensorRT lacks. Zero points are integers, stored as float32.
"""

from __future__ import annotations

import operator
from types import MappingProxyType
from typing import Final, TypeAlias

import torch
from torch import Tensor

from pipeline.aten.types import Argument, Function, Node
from pipeline.decomposition.quantized_arithmetic import Facts

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
