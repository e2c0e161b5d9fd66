"""Attention and mixture-of-experts functions that are captured as one graph for prompts and for single tokens."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any, Final, NamedTuple

import torch
import transformers
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pipeline.aten.own_ops import OPEN_MASK
from pipeline.compat.transformers.caches import Pretrained

log = logging.getLogger(__name__)
SOFTCAP_HINT: Final = "load the model with attn_implementation='eager'"
sdpa = torch.nn.functional.scaled_dot_product_attention

_lock = threading.RLock()


@contextmanager
def replace_entries(table: dict[str, Any], **replacements: object) -> Iterator[None]:
    """Return a context in which ``table``, such as the ``vars`` of an object, has these ``replacements`` by key."""
    before = {name: table[name] for name in replacements if name in table}
    table.update(replacements)
    try:
        yield
    finally:
        for name in replacements:
            del table[name]
        table.update(before)


def masked_attention(
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
    """Return the attention [batch, length, heads, width] of queries [batch, heads, length, width], and None. Keys may
    have fewer heads than queries (GQA). ``position_bias`` is added to the scores.

    The function replaces transformers' ``sdpa``, which branches on the number of queries; this one does not.
    """
    if kwargs.get("softcap") is not None and _sdpa_refuses_softcap():
        raise ValueError(f"sdpa attention does not support softcap, which the model needs: {SOFTCAP_HINT}")
    bias = _additive_bias(attention_mask, position_bias, query.dtype)
    if bias is not None and (attention_mask is None or attention_mask.dtype == torch.bool):
        bias = OPEN_MASK(bias)
    grouped = query.shape[1] != key.shape[1]
    query = _scale_query(query, query.shape[-1] ** -0.5 if scaling is None else scaling)
    result = sdpa(query, key, value, bias, scale=1.0, enable_gqa=grouped)
    return result.transpose(1, 2).contiguous(), None


def _scale_query(query: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the query multiplied by the scale, computed in float32 for half precision and rounded before the matmul.
    Attention is then called with scale 1, so an engine that ends before the attention still contains the scaling."""
    if scale == 1:
        return query
    return (query.to(torch.promote_types(query.dtype, torch.float32)) * scale).to(query.dtype)


@cache
def _sdpa_refuses_softcap() -> bool:
    """Return whether transformers' ``sdpa`` raises an error for attention logit soft-capping. Version 5.17 ignores the
    soft cap without an error, and so does the compiled attention."""
    one = torch.zeros(1, 1, 1, 1)
    try:
        sdpa_attention_forward(torch.nn.Module(), one, one, one, None, softcap=1.0)
    except ValueError:
        return True
    log.warning("sdpa of transformers %s ignores the model's softcap: %s", transformers.__version__, SOFTCAP_HINT)
    return False


def _additive_bias(mask: torch.Tensor | None, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Return the tensor to add to attention scores. For a bool mask, the tensor has the bias (or 0) where the mask is
    True, and the dtype's lowest number elsewhere. Return None if there is neither a mask nor a bias."""
    if mask is not None and mask.dtype == torch.bool:
        lowest = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=mask.device)
        return torch.where(mask, torch.zeros((), dtype=dtype, device=mask.device) if bias is None else bias, lowest)
    return mask if bias is None else bias if mask is None else bias + mask


@contextmanager
def use_attention(model: Pretrained, name: str) -> Iterator[None]:
    """Return a context in which a model's layers compute attention by the transformers function of this name. With the
    name ``eager``, transformers creates masks as tensors."""
    configs = (getattr(config, "config", None) for config in model.modules())
    with ExitStack() as stack:
        unique = {id(each): each for each in configs if hasattr(each, "_attn_implementation_internal")}
        for config in unique.values():
            stack.enter_context(replace_entries(vars(config), _attn_implementation_internal=name))
        yield


class Windows(NamedTuple):
    """Positions of a sequence, grouped into windows that are padded to one size: ``gather`` [windows, size] has the
    indices of each window's positions, ``real`` [windows, size] is False at padding, and ``back`` [positions] has each
    position's index in the flattened windows."""

    gather: torch.Tensor
    real: torch.Tensor
    back: torch.Tensor

    @classmethod
    def from_ends(cls, window_ends: torch.Tensor, padded_size: int) -> Windows:
        """Group positions into windows: ``window_ends`` [0, 4, 6] means the positions 0 to 3, and 4 to 5. Each window
        is padded to ``padded_size`` positions, or to the largest window if that is larger."""
        starts, lengths = window_ends[:-1].long(), window_ends.long().diff()
        within = torch.arange(max(padded_size, int(lengths.max())), device=window_ends.device)
        real = within < lengths[:, None]
        return cls(torch.where(real, starts[:, None] + within, 0), real, real.flatten().nonzero()[:, 0])


def attend_in_windows(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    *,
    cu_seq_lens_q: Windows | torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Return attention [1, positions, heads, width], and None, for an encoder's queries, keys and values [1, heads,
    positions, width] of one image or sound. Positions attend to each other within the windows of ``cu_seq_lens_q``, or
    without limit if it is not a `Windows`. ``attention_mask`` is ignored."""
    if not isinstance(cu_seq_lens_q, Windows):
        if cu_seq_lens_q is not None and cu_seq_lens_q.shape[0] != 2:
            raise ValueError("cu_seq_lens_q has several segments, expected one: pass one image or sound in a call")
        return masked_attention(module, query, key, value, None, scaling=scaling)
    windows, index = cu_seq_lens_q.gather.shape, cu_seq_lens_q.gather.flatten()
    q, k, v = (x[0].index_select(1, index).unflatten(1, windows).transpose(0, 1) for x in (query, key, value))
    result = masked_attention(module, q, k, v, cu_seq_lens_q.real[:, None, None], scaling=scaling)[0]
    return result.flatten(0, 1).index_select(0, cu_seq_lens_q.back)[None], None


SLICES: Final = "_maybe_slice_kv_shared_inputs"
"""The name of a method in models whose layers share keys and values (Gemma 4): it makes these layers compute only the
last rows."""


def _expand_last_row(
    _: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, Pretrained], output: Pretrained
) -> Pretrained:
    """Repeat, in a forward hook, the hidden state of the only computed token, as the head expects it for all tokens."""
    if _is_last_row_only(kwargs.get("logits_to_keep")):
        candidates: tuple[Pretrained, ...] = (kwargs.get("input_ids"), kwargs.get("inputs_embeds"), *args)
        ids = next(each for each in candidates if each is not None)
        output.last_hidden_state = output.last_hidden_state[:, -1:].expand(-1, ids.shape[1], -1)
    return output


def _is_last_row_only(logits_to_keep: object) -> bool:
    """Return whether only the last token's logits are requested (with draft tokens, a tensor lists the tokens)."""
    return isinstance(logits_to_keep, int) and logits_to_keep == 1


def _keep_last_rows(
    hidden: torch.Tensor,
    by_layer: torch.Tensor,
    rotary_positions: dict[str, tuple[torch.Tensor, torch.Tensor]],
    masks: dict[str, torch.Tensor | None],
    logits_to_keep: int | torch.Tensor,
    **_: object,
) -> tuple[object, ...]:
    """Return the first four arguments or, if ``logits_to_keep`` is 1, their parts for the last token: hidden states
    [batch, length, width], inputs by layer [batch, length, layers, width], and, by layer type, rotary (cos, sin) and
    masks [batch, 1, length, positions]."""
    if not _is_last_row_only(logits_to_keep):
        return hidden, by_layer, rotary_positions, masks
    last = slice(-1, None)
    rotary = {kind: (cos[:, last], sin[:, last]) for kind, (cos, sin) in rotary_positions.items()}
    cut = {kind: None if mask is None else mask[:, :, last] for kind, mask in masks.items()}
    return hidden[:, last], by_layer[:, last], rotary, cut


@contextmanager
def without_branches(step: torch.nn.Module) -> Iterator[None]:
    """Return a context in which ``step``, a decoder step or encoder, is captured as one graph for any number of tokens.
    In it, `masked_attention` replaces transformers' ``sdpa``, and grouped matmuls (`grouped_mm_experts_forward`), or
    for Switch Transformers a mask, replace loops over experts, whose length depends on data. Layers that share keys and
    values compute only the last token if only its logits are requested. The context is not thread-safe."""
    attentions, experts = ALL_ATTENTION_FUNCTIONS._local_mapping, ALL_EXPERTS_FUNCTIONS._local_mapping
    with _lock, ExitStack() as stack:
        stack.enter_context(replace_entries(attentions, sdpa=masked_attention))
        stack.enter_context(replace_entries(experts, eager=grouped_mm_experts_forward))
        for each in step.modules():
            if hasattr(type(each), SLICES):
                stack.enter_context(each.register_forward_hook(_expand_last_row, with_kwargs=True))
                stack.enter_context(replace_entries(vars(each), **{SLICES: _keep_last_rows}))
            if type(each).__name__ == "SwitchTransformersExperts":
                stack.enter_context(replace_entries(vars(each), forward=partial(_run_experts_on_all_rows, each)))
        yield


def _run_experts_on_all_rows(
    experts: Pretrained, rows: torch.Tensor, routing: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Return, for ``rows`` [n, width], the output of each row's expert times the row's weight [n, 1]. ``routing``
    [n, 1, experts] is 1 at the row's expert; if it is 0 at all experts (the expert was full), the output is 0."""
    result = torch.zeros_like(rows)
    for i in range(experts.num_experts):
        output = experts[f"expert_{i}"](rows) * weights
        result = torch.where(routing[..., i] > 0, output.to(rows.dtype), result)
    return result
