"""Convert bitwise operators of two tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pipeline.converters.binding import converts
from pipeline.converters.declare import Rejection
from pipeline.converters.elementwise import among_bytes
from pipeline.converters.result_types import by_operator, by_row
from pipeline.impl import elementwise_bits
from pipeline.impl.base import ITensor, Value
from pipeline.network.net import Net
from pipeline.settings import CompilationSettings

aten = torch.ops.aten

BITWISE: Mapping[tuple[Any, ...], tuple[Any, ...]] = {
    (elementwise_bits.bitwise, "AND"): (
        aten.bitwise_and.Tensor,
        aten.bitwise_and.Scalar,
        aten.bitwise_and.Scalar_Tensor,
    ),
    (elementwise_bits.bitwise, "OR"): (aten.bitwise_or.Tensor, aten.bitwise_or.Scalar, aten.bitwise_or.Scalar_Tensor),
    (elementwise_bits.bitwise, "XOR"): (
        aten.bitwise_xor.Tensor,
        aten.bitwise_xor.Scalar,
        aten.bitwise_xor.Scalar_Tensor,
    ),
}
SHIFTS: Mapping[tuple[Any, ...], tuple[Any, ...]] = {
    (elementwise_bits.shift, True): (
        aten.bitwise_left_shift.Tensor,
        aten.bitwise_left_shift.Tensor_Scalar,
        aten.bitwise_left_shift.Scalar_Tensor,
        aten.__lshift__.Tensor,
        aten.__lshift__.Scalar,
    ),
    (elementwise_bits.shift, False): (
        aten.bitwise_right_shift.Tensor,
        aten.bitwise_right_shift.Tensor_Scalar,
        aten.bitwise_right_shift.Scalar_Tensor,
        aten.__rshift__.Tensor,
        aten.__rshift__.Scalar,
    ),
}


def rank_below_8(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Integers are split into digits along one more dim, and TensorRT's limit is rank 8; masks of 2**k - 1 need no
    split."""
    value = node.meta["val"]
    if value.dtype == torch.bool or value.dim() < 8 or elementwise_bits.is_low_mask(node.args[1]):
        return True
    return Rejection(f"the digits of integers of rank {value.dim()} need one dim more than TensorRT's 8")


@converts(by_operator(BITWISE), validator=rank_below_8)
def bitwise(net: Net, row: tuple[Any, ...], *operands: Value) -> ITensor:
    """bitwise_and.Tensor(Tensor self, Tensor other) -> Tensor"""
    return by_row(net, row, operands)


@converts(by_operator(SHIFTS))
def shift(net: Net, row: tuple[Any, ...], *operands: Value) -> ITensor:
    """bitwise_left_shift.Tensor(Tensor self, Tensor other) -> Tensor"""
    return by_row(net, row, among_bytes(net, operands))
