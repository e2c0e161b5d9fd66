"""Decompose device-specific attention operators (flash, efficient and cuDNN attention).

Each becomes scaled dot product attention, and the log-sum-exp if it is read. Results that only a backward pass reads
are None.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import torch

from pipeline.aten.preserved_composites import STAND_INS
from pipeline.converters.decompositions import register_torch_trt_decomposition
from pipeline.shapes.environment import shape_of

aten = torch.ops.aten
Tensor = torch.Tensor


def _attention_and_logsumexp(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Return the attention and its float32 log-sum-exp. ``causal``: a query attends to keys up to its own position."""
    if causal and bias is not None:
        bias, causal = _with_window(query, bias, _window(query, key, 0, None, 0)), False
    gqa = query.dim() == 4 and query.shape[1] != key.shape[1]
    attend = STAND_INS[aten.scaled_dot_product_attention.default]
    result = attend(query, key, value, bias, 0.0, causal, scale=scale, enable_gqa=gqa)
    hidden = _window(query, key, 0, None, 0) if causal else None
    return result, _log_sum_exp(query, key, _with_window(query, bias, hidden), scale)


def _log_sum_exp(query: Tensor, key: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if query.shape[1] != key.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = (query.float() * factor) @ key.float().transpose(-1, -2)
    return torch.logsumexp(scores if bias is None else scores + _additive_mask(bias), -1)


def _additive_mask(bias: Tensor) -> Tensor:
    """Return a mask as numbers to add: minus infinity where a bool mask is False."""
    added: Tensor = torch.where(bias, 0.0, -math.inf) if bias.dtype == torch.bool else bias
    return added


def _window(query: Tensor, key: Tensor, shift: Any, left: int | None, right: int | None) -> Tensor:
    """Return a mask of the keys from ``left`` before a query's position to ``right`` after it; None: no limit."""
    at = torch.arange(query.shape[-2], device=query.device)[:, None] + shift
    of = torch.arange(key.shape[-2], device=query.device)[None, :]
    bounds = [] if right is None else [of <= at + right]
    window: Tensor = reduce(torch.logical_and, bounds if left is None else [*bounds, of >= at - left])
    return window


def _with_window(query: Tensor, bias: Tensor | None, window: Tensor | None) -> Tensor | None:
    if bias is None or window is None:
        return window if bias is None else bias
    return bias & window if bias.dtype == torch.bool else torch.where(window, bias, -math.inf).to(query.dtype)


def _lower_right(query: Tensor, key: Tensor, left: int | None, right: int | None) -> Tensor:
    """Return the window that aligns the last query with the last key."""
    return _window(query, key, key.shape[-2] - query.shape[-2], left, right)


def _flash(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    """Compute attention like the flash kernel, whose causal windows end at the last key."""
    square = shape_of(query)[-2] == shape_of(key)[-2]
    window = _lower_right(query, key, None, 0) if causal and not square else None
    return _attention_and_logsumexp(query, key, value, window, causal and square, scale)


@register_torch_trt_decomposition(aten._scaled_dot_product_flash_attention.default)
def flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """_scaled_dot_product_flash_attention(Tensor query, Tensor key, Tensor value, float dropout_p=0.,
    bool is_causal=False, bool return_debug_mask=False, *, float? scale=None) -> (Tensor output, Tensor logsumexp, …)"""
    if dropout_p:
        return NotImplemented
    return (*_flash(query, key, value, is_causal, scale), *(None,) * 2, query.shape[2], key.shape[2], *(None,) * 3)


@register_torch_trt_decomposition(aten._scaled_dot_product_flash_attention_for_cpu.default)
def flash_for_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p=0.,
    bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)"""
    return NotImplemented if dropout_p else _attention_and_logsumexp(query, key, value, attn_mask, is_causal, scale)


def _efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    causal: bool,
    scale: float | None,
    compute_log_sumexp: bool,
) -> tuple[Tensor, Tensor]:
    """Compute attention like the memory-efficient kernel, whose log-sum-exp is padded to a multiple of 32 queries."""
    result, sums = _attention_and_logsumexp(query, key, value, bias, causal, scale)
    if not compute_log_sumexp:
        return result, sums[..., :0]
    length = query.shape[-2]
    return result, torch.nn.functional.pad(sums, (0, -length % 32), value=math.inf)


@register_torch_trt_decomposition(aten._scaled_dot_product_efficient_attention.default)
def efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """_scaled_dot_product_efficient_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_bias,
    bool compute_log_sumexp, float dropout_p=0., bool is_causal=False, *, float? scale=None)
    -> (Tensor output, Tensor log_sumexp, Tensor philox_seed, Tensor philox_offset)"""
    if dropout_p:
        return NotImplemented
    return *_efficient(query, key, value, attn_bias, is_causal, scale, compute_log_sumexp), None, None


@register_torch_trt_decomposition(aten._scaled_dot_product_cudnn_attention.default)
def cudnn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """_scaled_dot_product_cudnn_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_bias,
    bool compute_log_sumexp, float dropout_p=0., bool is_causal=False, bool return_debug_mask=False, *,
    float? scale=None) -> (Tensor output, Tensor logsumexp, …)"""
    if dropout_p:
        return NotImplemented
    result, sums = _attention_and_logsumexp(query, key, value, attn_bias, is_causal, scale)
    return result, sums[..., None], *(None,) * 2, query.shape[2], key.shape[2], *(None,) * 3


@register_torch_trt_decomposition(aten._scaled_dot_product_fused_attention_overrideable.default)
def overrideable(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """_scaled_dot_product_fused_attention_overrideable(Tensor query, Tensor key, Tensor value, Tensor? attn_bias=None,
    float dropout_p=0., bool is_causal=False, bool return_debug_mask=False, *, float? scale=None)
    -> (Tensor output, Tensor logsumexp, …)"""
    if dropout_p or query.dim() != 4:
        return NotImplemented
    result, sums = _attention_and_logsumexp(query, key, value, attn_bias, is_causal, scale)
    return result, sums, *(None,) * 2, query.shape[2], key.shape[2], *(None,) * 3


def _heads_first(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Transpose ``[batch, length, heads, size]`` to ``[batch, heads, length, size]``."""
    return tuple(x.transpose(1, 2) for x in tensors)


@register_torch_trt_decomposition(aten._flash_attention_forward.default)
def flash_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    num_splits: int | None = None,
    **packed: Any,
) -> Any:
    """_flash_attention_forward(Tensor query, Tensor key, Tensor value, Tensor? cum_seq_q, Tensor? cum_seq_k,
    SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, bool return_debug_mask, *, float? scale=None,
    SymInt? window_size_left=None, SymInt? window_size_right=None, Tensor? seqused_k=None, Tensor? alibi_slopes=None, …)
    -> (Tensor output, Tensor softmax_logsumexp, …)"""
    if dropout_p or any(v is not None for v in (cum_seq_q, cum_seq_k, *packed.values())):
        return NotImplemented
    query, key, value = _heads_first(query, key, value)
    left, right = (None if size is None or size < 0 else size for size in (window_size_left, window_size_right))
    if left is None and right is None:
        result, sums = _flash(query, key, value, is_causal, scale)
    else:
        window = _lower_right(query, key, left, 0 if is_causal else right)
        result, sums = _attention_and_logsumexp(query, key, value, window, False, scale)
    return result.transpose(1, 2), sums, None, None, None


NO_MASK, UPPER_LEFT, LOWER_RIGHT = range(3)
"""The values of ``custom_mask_type`` of the memory-efficient kernel."""


@register_torch_trt_decomposition(aten._efficient_attention_forward.default)
def efficient_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    dropout_p: float,
    custom_mask_type: int,
    compute_log_sumexp: bool = False,
    *,
    scale: float | None = None,
    seqlen_k: Tensor | None = None,
    window_size: int | None = None,
) -> Any:
    """_efficient_attention_forward(Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? cu_seqlens_q,
    Tensor? cu_seqlens_k, SymInt? max_seqlen_q, SymInt? max_seqlen_k, float dropout_p, int custom_mask_type,
    bool compute_log_sumexp=False, *, float? scale=None, Tensor? seqlen_k=None, int? window_size=None)
    -> (Tensor output, Tensor logsumexp, …)"""
    if dropout_p or any(v is not None for v in (cu_seqlens_q, cu_seqlens_k, seqlen_k, window_size)):
        return NotImplemented
    query, key, value = _heads_first(query, key, value)
    if custom_mask_type == LOWER_RIGHT:
        bias = _with_window(query, bias, _lower_right(query, key, None, 0))
    causal = custom_mask_type == UPPER_LEFT
    result, sums = _efficient(query, key, value, bias, causal, scale, compute_log_sumexp)
    return result.transpose(1, 2), sums, None, None, query.shape[2], key.shape[2]
