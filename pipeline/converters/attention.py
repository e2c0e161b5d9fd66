"""Scaled dot product attention."""

from __future__ import annotations

import math
from typing import Any

import torch

from pipeline.aten.arguments import argument
from pipeline.converters.binding import converts
from pipeline.converters.declare import Rejection
from pipeline.impl import base
from pipeline.impl.attention import fused, lets_all_attend, plain
from pipeline.impl.attention_limits import Case, fitted, unmet
from pipeline.impl.base import ITensor, Value
from pipeline.network.net import Net
from pipeline.settings import CompilationSettings
from pipeline.shapes.environment import shape_of

aten = torch.ops.aten


def attends_only(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Attention without dropout, of a known head dim."""
    if argument(node, "dropout_p"):
        return Rejection("its dropout_p is not 0: random numbers are drawn in PyTorch", "call model.eval() first")
    query = argument(node, "query").meta["val"]
    if isinstance(query.shape[-1], torch.SymInt):
        return Rejection(f"the last dim of its query, the head dim, is {query.shape[-1]}")
    return True


def _case(node: torch.fx.Node) -> Case:
    """The attention of a node, as the table of conditions sees it."""
    mask = argument(node, "attn_mask")
    query, key, value = (argument(node, name).meta["val"] for name in ("query", "key", "value"))
    bias = None if mask is None else mask.meta["val"]
    return Case(
        dtype=query.dtype,
        query=shape_of(query),
        key=shape_of(key),
        value=shape_of(value),
        mask=None if bias is None else shape_of(bias),
        mask_dtype=None if bias is None else bias.dtype,
        causal=bool(argument(node, "is_causal")),
        gqa=_gqa(node),
    )


def _gqa(node: torch.fx.Node) -> bool:
    return bool(argument(node, "enable_gqa"))


def fuses(node: torch.fx.Node, settings: CompilationSettings) -> bool:
    """Whether TensorRT does a node's attention in one kernel."""
    return not settings.decompose_attention and unmet(fitted(_case(node))) is None


_EITHER = (aten.logical_or.default, aten.bitwise_or.Tensor)
NOT = (aten.logical_not.default, aten.bitwise_not.default)


def is_open(mask: Any) -> bool:
    """Whether a mask shows by how it is made that something is left to attend to in every row: it has no minus
    infinity, or it is another mask, and lets everything through where that has nothing."""
    while isinstance(mask, torch.fx.Node) and mask.target is aten.expand.default:
        mask = mask.args[0]
    if not isinstance(mask, torch.fx.Node):
        return False
    if mask.target in _EITHER:
        return any(_has_nothing(rows, of) for of, rows in (mask.args, mask.args[::-1]))
    if mask.target is aten.clamp.default:
        least = argument(mask, "min")
        return isinstance(least, float) and math.isfinite(least) and argument(mask, "max") is None
    if mask.target is aten.masked_fill.Scalar:
        of, rows, filled = mask.args
        return bool(filled == 0) and _has_nothing(rows, of)
    return False


def _has_nothing(rows: Any, mask: Any) -> bool:
    """Whether one tensor says of each row of another that it has nothing: ``~mask.any(-1, keepdim=True)``."""
    some = rows.args[0] if isinstance(rows, torch.fx.Node) and rows.target in NOT else None
    if not isinstance(some, torch.fx.Node) or some.target is not aten.any.dim or not argument(some, "keepdim"):
        return False
    counts = some.args[0]
    if argument(some, "dim") not in (-1, counts.meta["val"].dim() - 1):  # type: ignore[union-attr]
        return False
    added = isinstance(counts, torch.fx.Node) and counts.target is aten.ne.Scalar and counts.args[1] == -math.inf
    return (counts.args[0] if added else counts) is mask  # type: ignore[union-attr]


@converts(aten.scaled_dot_product_attention.default, validator=attends_only)
def attention(
    net: Net, query: Value, key: Value, value: Value, attn_mask: Value | None, scale: float | None
) -> ITensor:
    """scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None,
    float dropout_p=0., bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor"""
    query, key, value = (base.tensor(net, x) for x in (query, key, value))
    case = _case(net.node)
    some = is_open(argument(net.node, "attn_mask")) or lets_all_attend(net, attn_mask)
    scale = 1 / math.sqrt(case.query[-1]) if scale is None else float(scale)
    how: dict[str, Any] = {"some": some, "causal": case.causal, "scale": scale}
    if fuses(net.node, net.ctx.compilation_settings):
        return fused(net, query, key, value, attn_mask, **how)
    return plain(net, query, key, value, attn_mask, gqa=case.gqa, **how)
