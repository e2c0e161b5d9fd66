"""Bitwise operators of two tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pipeline.converters.binding import converts
from pipeline.converters.declare import Rejection
from pipeline.converters.elementwise import among_bytes
from pipeline.converters.results import by_row
from pipeline.impl import elementwise_bits
from pipeline.impl.base import ITensor, Value
from pipeline.network.net import Net
from pipeline.settings import CompilationSettings

aten = torch.ops.aten

BITWISE: Mapping[Any, tuple[Any, ...]] = {
    aten.bitwise_and.Tensor: (elementwise_bits.bitwise, "AND"),
    aten.bitwise_and.Scalar: (elementwise_bits.bitwise, "AND"),
    aten.bitwise_and.Scalar_Tensor: (elementwise_bits.bitwise, "AND"),
    aten.bitwise_or.Tensor: (elementwise_bits.bitwise, "OR"),
    aten.bitwise_or.Scalar: (elementwise_bits.bitwise, "OR"),
    aten.bitwise_or.Scalar_Tensor: (elementwise_bits.bitwise, "OR"),
    aten.bitwise_xor.Tensor: (elementwise_bits.bitwise, "XOR"),
    aten.bitwise_xor.Scalar: (elementwise_bits.bitwise, "XOR"),
    aten.bitwise_xor.Scalar_Tensor: (elementwise_bits.bitwise, "XOR"),
}
SHIFTS: Mapping[Any, tuple[Any, ...]] = {
    aten.bitwise_left_shift.Tensor: (elementwise_bits.shift, True),
    aten.bitwise_left_shift.Tensor_Scalar: (elementwise_bits.shift, True),
    aten.bitwise_left_shift.Scalar_Tensor: (elementwise_bits.shift, True),
    aten.__lshift__.Tensor: (elementwise_bits.shift, True),
    aten.__lshift__.Scalar: (elementwise_bits.shift, True),
    aten.bitwise_right_shift.Tensor: (elementwise_bits.shift, False),
    aten.bitwise_right_shift.Tensor_Scalar: (elementwise_bits.shift, False),
    aten.bitwise_right_shift.Scalar_Tensor: (elementwise_bits.shift, False),
    aten.__rshift__.Tensor: (elementwise_bits.shift, False),
    aten.__rshift__.Scalar: (elementwise_bits.shift, False),
}


def rank_below_8(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Integers are taken apart into digits along one more dim, and 8 is TensorRT's limit; by 2**k - 1 they are not."""
    value = node.meta["val"]
    if value.dtype == torch.bool or value.dim() < 8 or elementwise_bits.is_low_mask(node.args[1]):
        return True
    return Rejection(f"the digits of integers of rank {value.dim()} need one dim more than TensorRT's 8")


@converts(BITWISE, validator=rank_below_8)
def bitwise(net: Net, row: tuple[Any, ...], *operands: Value) -> ITensor:
    """bitwise_and.Tensor(Tensor self, Tensor other) -> Tensor"""
    return by_row(net, row, operands)


@converts(SHIFTS)
def shift(net: Net, row: tuple[Any, ...], *operands: Value) -> ITensor:
    """bitwise_left_shift.Tensor(Tensor self, Tensor other) -> Tensor"""
    return by_row(net, row, among_bytes(net, operands))
