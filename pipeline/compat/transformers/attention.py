"""The attention that transformers' models are captured with: one form for prompts and single tokens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_turn = threading.RLock()


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention of queries [batch, heads, length, width] to keys of as many heads or fewer, where the mask
    allows.

    It is transformers' ``sdpa`` without its branches on the number of queries. Queries that share a head of keys are
    rows of one product: keys and values are read once, directly from the cache, and not repeated.
    """
    shape, heads = query.shape, key.shape[1]
    groups = shape[1] // heads
    bias = _bias(attention_mask, position_bias, query.dtype)
    scale = shape[-1] ** -0.5 if scaling is None else scaling
    rows = query.reshape(shape[0], heads, groups * shape[2], shape[3])
    scores = torch.matmul(rows, key.transpose(-2, -1)) * scale
    if bias is not None:
        scores = scores.unflatten(2, (groups, shape[2])) + _by_group(bias, heads)
    weights = torch.nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = weights if bias is None else weights.flatten(2, 3)
    result = torch.matmul(weights, value).reshape(shape[0], shape[1], shape[2], value.shape[-1])
    return result.transpose(1, 2).contiguous(), None


def _by_group(bias: torch.Tensor, heads: int) -> torch.Tensor:
    """A bias [batch, 1 or query heads, length, positions] for scores [batch, heads, groups, length, positions]."""
    return bias.unsqueeze(2) if bias.shape[1] == 1 else bias.unflatten(1, (heads, -1))


def _bias(mask: torch.Tensor | None, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """What is added to scores: of a condition 0 where it holds, and the lowest number elsewhere."""
    if mask is not None and mask.dtype == torch.bool:
        lowest = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=mask.device)
        mask = torch.where(mask, torch.zeros((), dtype=dtype, device=mask.device), lowest)
    return mask if bias is None else bias if mask is None else bias + mask


@contextmanager
def one_form() -> Iterator[None]:
    """While entered, transformers' models with ``sdpa`` attention use this one. One thread at a time."""
    with _turn:
        before = ALL_ATTENTION_FUNCTIONS._local_mapping.get("sdpa")
        ALL_ATTENTION_FUNCTIONS["sdpa"] = attention
        try:
            yield
        finally:
            ALL_ATTENTION_FUNCTIONS._local_mapping.pop("sdpa")
            if before is not None:
                ALL_ATTENTION_FUNCTIONS["sdpa"] = before
