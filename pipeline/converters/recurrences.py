"""Convert recurrences over a number of tokens that may be dynamic: gated linear attention and the selective scan."""

from __future__ import annotations

from pipeline.aten.linear_recurrence_ops import LINEAR_ATTENTION, SELECTIVE_SCAN
from pipeline.converters.binding import converts
from pipeline.impl import linear_attention as attention
from pipeline.impl import selective_scan as scan
from pipeline.impl.base import ITensor, Value
from pipeline.network.net import Net


@converts(LINEAR_ATTENTION)
def linear_attention(
    net: Net, query: Value, key: Value, value: Value, decay: Value, beta: Value | None, state: Value
) -> tuple[ITensor, ITensor]:
    """pipeline::linear_attention(Tensor query, Tensor key, Tensor value, Tensor decay, Tensor? beta, Tensor state)
    -> (Tensor, Tensor)"""
    return attention.linear_attention(net, query, key, value, decay, beta, state)


@converts(SELECTIVE_SCAN)
def selective_scan(
    net: Net, input: Value, step: Value, a: Value, b: Value, c: Value, state: Value
) -> tuple[ITensor, ITensor]:
    """pipeline::selective_scan(Tensor input, Tensor step, Tensor a, Tensor b, Tensor c, Tensor state)
    -> (Tensor, Tensor)"""
    return scan.selective_scan(net, input, step, a, b, c, state)
