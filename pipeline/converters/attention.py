"""Convert scaled dot product attention."""

from __future__ import annotations

import math
from typing import Any

import torch

from pipeline.aten.own_ops import OPEN_MASK
from pipeline.converters.binding import CompilationSettings, Rejection, argument, aten, converts
from pipeline.impl import base
from pipeline.impl.attention import float32_attention, fused_attention, has_unmasked_key_per_row
from pipeline.impl.attention_limits import AttentionCase, first_unmet_condition, pad_case
from pipeline.impl.base import ITensor, Net, Value
from pipeline.quirks import is_avoided
from pipeline.shapes.environment import shape_of

HALVES = (torch.float16, torch.bfloat16)
LONG = 1024
"""The minimum number of queries and of keys for which PyTorch's attention kernel was faster on an H200
(docs/notes/2026-11-29-real-sizes.md)."""


def check_attention(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Dropout must be 0, and the head dim must be static."""
    if argument(node, "dropout_p"):
        return Rejection("dropout_p is not 0: engines cannot draw PyTorch's random numbers", "call model.eval() first")
    query = argument(node, "query").meta["val"]
    if isinstance(query.shape[-1], torch.SymInt):
        return Rejection(f"the head dim, the query's last dim, is dynamic ({query.shape[-1]}); it must be static")
    if is_slow_attention(node, settings):
        return Rejection(
            "PyTorch's attention is faster than TensorRT's on this kind of GPU (H200, 4,096 keys: 186 µs against 375)",
            "compile with faster_in_torch=False to run attention in TensorRT",
        )
    return True


def is_slow_attention(node: torch.fx.Node, settings: CompilationSettings) -> bool:
    """Return whether an attention stays in PyTorch because PyTorch's kernel is faster: the dtype is half precision,
    and the example inputs have many queries and keys."""
    asked = settings.faster_in_torch and not settings.require_full_compilation
    if not (asked and is_avoided("slow-attention") and node.target is aten.scaled_dot_product_attention.default):
        return False
    query, key = (argument(node, name).meta["val"] for name in ("query", "key"))
    lengths = [x.shape[-2] if isinstance(x.shape[-2], int) else x.shape[-2].node.hint for x in (query, key)]
    return query.dtype in HALVES and all(n is not None and n >= LONG for n in lengths)  # None depends on data


def _attention_case(node: torch.fx.Node) -> AttentionCase:
    """Return the dtypes, shapes and options of an attention node, to check whether TensorRT fuses the attention."""
    mask = argument(node, "attn_mask")
    query, key, value = (argument(node, name).meta["val"] for name in ("query", "key", "value"))
    bias = None if mask is None else mask.meta["val"]
    return AttentionCase(
        dtype=query.dtype,
        query=shape_of(query),
        key=shape_of(key),
        value=shape_of(value),
        mask=None if bias is None else shape_of(bias),
        mask_dtype=None if bias is None else bias.dtype,
        causal=bool(argument(node, "is_causal")),
        gqa=bool(argument(node, "enable_gqa")),
    )


def is_fused(node: torch.fx.Node, settings: CompilationSettings) -> bool:
    """Return whether TensorRT computes a node's attention in one fused kernel."""
    return not settings.decompose_attention and first_unmet_condition(pad_case(_attention_case(node))) is None


def promises_key_in_row(mask: Any) -> bool:
    """Return whether a mask comes from ``pipeline::open_mask``, which promises an unmasked key in each of its rows."""
    while isinstance(mask, torch.fx.Node) and mask.target is aten.expand.default:
        mask = mask.args[0]
    return isinstance(mask, torch.fx.Node) and mask.target is OPEN_MASK


@converts(aten.scaled_dot_product_attention.default, validator=check_attention)
def attention(
    net: Net, query: Value, key: Value, value: Value, attn_mask: Value | None, scale: float | None
) -> ITensor:
    """scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None,
    float dropout_p=0., bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor"""
    query, key, value = (base.tensor(net, x) for x in (query, key, value))
    case = _attention_case(net.node)
    has_unmasked_keys = promises_key_in_row(argument(net.node, "attn_mask")) or has_unmasked_key_per_row(net, attn_mask)
    scale = 1 / math.sqrt(case.query[-1]) if scale is None else float(scale)
    options: dict[str, Any] = {"has_unmasked_keys": has_unmasked_keys, "causal": case.causal, "scale": scale}
    if is_fused(net.node, net.ctx.compilation_settings):
        return fused_attention(net, query, key, value, attn_mask, **options)
    return float32_attention(net, query, key, value, attn_mask, gqa=case.gqa, **options)
