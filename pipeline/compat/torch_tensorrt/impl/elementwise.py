"""Building blocks for elementwise functions of two tensors or numbers, which broadcast."""

from __future__ import annotations

from typing import Final

from pipeline.compat.torch_tensorrt.blocks import Argument, Expression, aten, block, call, op_block

TARGETS: Final = {
    "SUM": aten.add.Tensor,
    "PROD": aten.mul.Tensor,
    "MAX": aten.maximum.default,
    "MIN": aten.minimum.default,
    "SUB": aten.sub.Tensor,
    "DIV": aten.div.Tensor,
    "POW": aten.pow.Tensor_Tensor,
    "FLOOR_DIV": aten.floor_divide.default,
    "AND": aten.logical_and.default,
    "OR": aten.logical_or.default,
    "XOR": aten.logical_xor.default,
    "EQUAL": aten.eq.Tensor,
    "GREATER": aten.gt.Tensor,
    "LESS": aten.lt.Tensor,
}
"""The ATen equivalent of each TensorRT elementwise operation, by its name."""

add, mul, sub = (op_block(TARGETS[name], "lhs_val", "rhs_val") for name in ("SUM", "PROD", "SUB"))
div, pow, floor_divide = (op_block(TARGETS[name], "lhs_val", "rhs_val") for name in ("DIV", "POW", "FLOOR_DIV"))
max, min = (op_block(TARGETS[name], "lhs_val", "rhs_val") for name in ("MAX", "MIN"))
logical_and, logical_or, logical_xor = (op_block(TARGETS[name], "lhs_val", "rhs_val") for name in ("AND", "OR", "XOR"))
eq, gt, lt = (op_block(TARGETS[name], "lhs_val", "rhs_val") for name in ("EQUAL", "GREATER", "LESS"))
ne, ge, le = (op_block(op.Tensor, "lhs_val", "rhs_val") for op in (aten.ne, aten.ge, aten.le))
bitwise_and, bitwise_or, bitwise_xor = (
    op_block(op.Tensor, "lhs_val", "rhs_val") for op in (aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor)
)
fmod, remainder = (op_block(op.Tensor, "input", "other") for op in (aten.fmod, aten.remainder))
atan2, rsqrt = op_block(aten.atan2.default, "input", "other"), op_block(aten.rsqrt.default, "input")

trunc_div = block(
    lambda input, other: call(aten.div.Tensor_mode, input, other, rounding_mode="trunc"),
    "A quotient rounded towards zero.",
)
convert_binary_elementwise = block(
    lambda op_type, lhs_val, rhs_val: call(TARGETS[op_type.name], lhs_val, rhs_val),
    "The layer of a ``trt.ElementWiseOperation``, with eager's promotion: a quotient of integers is a float.",
)


@block
def clamp(input_val: Argument, min_val: Argument = None, max_val: Argument = None) -> Expression:
    """Limit the elements to bounds, which may be numbers or tensors; None means that there is no bound."""
    lower = input_val if min_val is None else call(TARGETS["MAX"], input_val, min_val)
    lower = call(aten.clone.default, input_val) if min_val is None and max_val is None else lower
    return lower if max_val is None else call(TARGETS["MIN"], lower, max_val)
