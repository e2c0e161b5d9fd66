"""Convert primitives that torch's decompositions produce."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.converters.binding import converts
from pipeline.converters.result_types import as_result, result_of
from pipeline.impl import base, elementwise_division, reduce
from pipeline.impl.base import ITensor, Value
from pipeline.network.net import Net

prims = torch.ops.prims


@converts(prims.div.default)
def div(net: Net, input: Value, other: Value) -> ITensor:
    """prims::div(Tensor self, Tensor other) -> Tensor. Integers are divided toward zero."""
    rounding = None if result_of(net).dtype.is_floating_point else "trunc"
    return as_result(net, elementwise_division.divide(net, input, other, rounding))


@converts(prims.sum.default)
def sum(net: Net, inp: Value, dims: Sequence[int] | None) -> ITensor:
    """prims::sum(Tensor inp, int[]? dims, *, ScalarType? output_dtype=None) -> Tensor"""
    if dims == []:  # reduces no dim here, all dims in aten.sum
        return as_result(net, base.tensor(net, inp))
    return as_result(net, reduce.total(net, "SUM", inp, dims, False, result_of(net).dtype))
