"""Attention."""

from __future__ import annotations

import torch

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import Argument, Expression, call

aten = torch.ops.aten


@block
def scaled_dot_product_attention(
    query: Argument, key: Argument, value: Argument, is_causal: bool, scale: float | None
) -> Expression:
    """aten.scaled_dot_product_attention.default"""
    return call(aten.scaled_dot_product_attention.default, query, key, value, None, 0.0, is_causal, scale=scale)


@block
def tril(row: Argument, col: Argument) -> Expression:
    """A mask of bools, True on and below the diagonal: aten.tril.default"""
    return call(aten.tril.default, call(aten.full.default, [row, col], True, dtype=torch.bool))
