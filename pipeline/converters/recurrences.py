"""Recurrences over tokens, of a number that may be dynamic: gated linear attention, and the selective scan."""

from __future__ import annotations

import torch

from pipeline.aten.arguments import argument
from pipeline.aten.recurrences import LINEAR_ATTENTION, SELECTIVE_SCAN
from pipeline.converters.binding import converts
from pipeline.converters.declare import Rejection
from pipeline.impl import linear_attention as attention
from pipeline.impl import selective_scan as scan
from pipeline.impl.base import ITensor, Value
from pipeline.network.net import Net
from pipeline.settings import CompilationSettings


def in_float32(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """All is in float32, and every size but the batch and the number of tokens is known."""
    for each in node.all_input_nodes:
        if (dtype := each.meta["val"].dtype) != torch.float32:
            return Rejection(f"{each.name} is {dtype}: states are added up in float32", "cast it before")
    state = argument(node, "state").meta["val"]
    if any(isinstance(size, torch.SymInt) for size in state.shape[1:]):
        return Rejection(f"its state has dims of unknown sizes: {tuple(state.shape)}")
    return True


@converts(LINEAR_ATTENTION, validator=in_float32)
def linear_attention(
    net: Net, query: Value, key: Value, value: Value, decay: Value, beta: Value | None, state: Value
) -> tuple[ITensor, ITensor]:
    """pipeline::linear_attention(Tensor query, Tensor key, Tensor value, Tensor decay, Tensor? beta, Tensor state)
    -> (Tensor, Tensor)"""
    return attention.linear_attention(net, query, key, value, decay, beta, state)


@converts(SELECTIVE_SCAN, validator=in_float32)
def selective_scan(
    net: Net, input: Value, step: Value, a: Value, b: Value, c: Value, state: Value
) -> tuple[ITensor, ITensor]:
    """pipeline::selective_scan(Tensor input, Tensor step, Tensor a, Tensor b, Tensor c, Tensor state)
    -> (Tensor, Tensor)"""
    return scan.selective_scan(net, input, step, a, b, c, state)
