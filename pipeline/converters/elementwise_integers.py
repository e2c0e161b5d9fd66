"""Bitwise operators and powers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.converters.declare import Rejection
from pipeline.converters.results import declared
from pipeline.impl import elementwise_bits, elementwise_power
from pipeline.settings import CompilationSettings

aten = torch.ops.aten

Args = Sequence[Any]
Kwargs = Mapping[str, Any]

BITWISE = {
    aten.bitwise_and.Tensor: "AND",
    aten.bitwise_and.Scalar: "AND",
    aten.bitwise_and.Scalar_Tensor: "AND",
    aten.bitwise_or.Tensor: "OR",
    aten.bitwise_or.Scalar: "OR",
    aten.bitwise_or.Scalar_Tensor: "OR",
    aten.bitwise_xor.Tensor: "XOR",
    aten.bitwise_xor.Scalar: "XOR",
    aten.bitwise_xor.Scalar_Tensor: "XOR",
}


LEFT_SHIFTS = (
    aten.bitwise_left_shift.Tensor,
    aten.bitwise_left_shift.Tensor_Scalar,
    aten.bitwise_left_shift.Scalar_Tensor,
    aten.__lshift__.Tensor,
    aten.__lshift__.Scalar,
)
RIGHT_SHIFTS = (
    aten.bitwise_right_shift.Tensor,
    aten.bitwise_right_shift.Tensor_Scalar,
    aten.bitwise_right_shift.Scalar_Tensor,
    aten.__rshift__.Tensor,
    aten.__rshift__.Scalar,
)


def of_integers(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Shifts of floats are products in eager, and old."""
    dtype = node.meta["val"].dtype
    return not dtype.is_floating_point or Rejection(f"a shift of {dtype} has no meaning; multiply by a power of two")


def rank_below_8(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Integers are taken apart into digits along one more dim, and 8 is TensorRT's limit."""
    value = node.meta["val"]
    if value.dtype == torch.bool or value.dim() < 8:
        return True
    return Rejection(f"the digits of integers of rank {value.dim()} need one dim more than TensorRT's 8")


CONVERTERS = [
    *(declared(target, elementwise_bits.bitwise, op, validator=rank_below_8) for target, op in BITWISE.items()),
    *(declared(target, elementwise_bits.shift, True, validator=of_integers) for target in LEFT_SHIFTS),
    *(declared(target, elementwise_bits.shift, False, validator=of_integers) for target in RIGHT_SHIFTS),
    declared(aten.bitwise_not.default, elementwise_bits.bitwise_not),
    declared(aten.pow.Tensor_Scalar, elementwise_power.power),
    declared(aten.pow.Tensor_Tensor, elementwise_power.power),
    declared(aten.pow.Scalar, elementwise_power.power),
]
