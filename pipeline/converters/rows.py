"""Linear layers with the norm before them, or what they are added to."""

from __future__ import annotations

from pipeline.aten.rows import LINEAR_ONTO, NORMED_LINEAR
from pipeline.converters.binding import converts
from pipeline.converters.matmul import is_turned
from pipeline.impl import matmul as impl
from pipeline.impl.base import ITensor, Value
from pipeline.network.net import Net


@converts(NORMED_LINEAR)
def normed_linear(
    net: Net, x: Value, gain: Value, weight: Value, bias: Value | None, eps: float, rounds_first: bool
) -> ITensor:
    """normed_linear(Tensor x, Tensor gain, Tensor weight, Tensor? bias, float eps, bool rounds_first) -> Tensor"""
    turned = is_turned(net.node)
    return impl.normed_linear(net, x, gain, weight, bias, eps, rounds_first=rounds_first, turned=turned)


@converts(LINEAR_ONTO)
def linear_onto(net: Net, x: Value, weight: Value, bias: Value | None, column: Value) -> ITensor:
    """linear_onto(Tensor x, Tensor weight, Tensor? bias, Tensor column) -> Tensor"""
    return impl.linear_onto(net, x, weight, bias, column)
