"""Run grouped-query attention (GQA) on a GPU in PyTorch."""

from __future__ import annotations

from typing import Final

import torch

from pipeline.aten.types import Argument
from pipeline.runtime import few_rows

SDPA: Final = torch.ops.aten.scaled_dot_product_attention.default


def attention(
    query: Argument, key: Argument, value: Argument, attn_mask: Argument = None, *flags: Argument, **options: Argument
) -> torch.Tensor:
    """Compute ``scaled_dot_product_attention`` of these arguments; for GQA, without torch's slow math backend.

    For grouped-query attention (GQA) with a mask torch may use that backend, which stores all scores: flash attention
    accepts no mask, the memory-efficient kernel no GQA, and cuDNN does not always run. So this function repeats the
    heads of keys; if each head has a single query, the queries of a group become rows of a single head.
    """
    heads, groups = query.shape[-3], key.shape[-3]
    if not options.get("enable_gqa") or attn_mask is None or heads == groups:
        return SDPA(query, key, value, attn_mask, *flags, **options)  # type: ignore[no-any-return]
    options["enable_gqa"] = False
    if query.shape[-2] != 1:
        keys, values = (tensor.repeat_interleave(heads // groups, -3) for tensor in (key, value))
        return SDPA(query, keys, values, attn_mask, *flags, **options)  # type: ignore[no-any-return]
    mask = _reshape_to_groups(attn_mask, groups) if attn_mask.dim() > 2 and attn_mask.shape[-3] == heads else attn_mask
    rows: torch.Tensor = SDPA(_reshape_to_groups(query, groups), key, value, mask, *flags, **options)
    return rows.reshape(*query.shape[:-1], value.shape[-1])


def attention_in_graphs(
    query: Argument,
    key: Argument,
    value: Argument,
    attn_mask: Argument = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Compute ``scaled_dot_product_attention``. If each head has one query, this package's Triton kernel computes
    it, and skips blocks of keys that the mask excludes."""
    if dropout_p or is_causal or not few_rows.supports_attention(query, key, value, attn_mask):
        return attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return few_rows.attention(query, key, value, attn_mask, query.shape[-1] ** -0.5 if scale is None else scale)


def _reshape_to_groups(rows: torch.Tensor, groups: int) -> torch.Tensor:
    """Reshape the last three dims from [heads, 1, n] to [groups, heads per group, n]."""
    return rows.reshape(*rows.shape[:-3], groups, -1, rows.shape[-1])
