"""Convert elementwise operators of two tensors: arithmetic, comparison, logic, bitwise operators and selection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.aten.arguments import bind
from pipeline.aten.types import aten
from pipeline.converters.binding import (
    CompilationSettings,
    Rejection,
    call_block,
    cast_to_result,
    converts,
    fake_result,
    rows_by_operator,
)
from pipeline.impl import base, elementwise, elementwise_arithmetic, unary
from pipeline.impl.base import ITensor, Net, Value

TABLE: Mapping[tuple[Any, ...], tuple[Any, ...]] = {
    (elementwise.add, "SUM"): (aten.add.Tensor, aten.add.Scalar),
    (elementwise.add, "SUB"): (aten.sub.Tensor, aten.sub.Scalar),
    (elementwise.binary, "PROD"): (aten.mul.Tensor, aten.mul.Scalar),
    (elementwise_arithmetic.divide,): (aten.div.Tensor, aten.div.Scalar, aten.div.Tensor_mode, aten.div.Scalar_mode),
    (elementwise_arithmetic.floor_divide,): (aten.floor_divide.default, aten.floor_divide.Scalar),
    (elementwise_arithmetic.fmod,): (aten.fmod.Tensor, aten.fmod.Scalar),
    (elementwise_arithmetic.remainder,): (aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor),
    (elementwise_arithmetic.power,): (aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar),
    (unary.atan2,): (aten.atan2.default,),
    (elementwise.extremum_ignoring_nan, "MAX"): (aten.fmax.default,),
    (elementwise.extremum_ignoring_nan, "MIN"): (aten.fmin.default,),
    (elementwise.extremum, "MAX"): (aten.maximum.default, aten.clamp_min.default, aten.clamp_min.Tensor),
    (elementwise.extremum, "MIN"): (aten.minimum.default, aten.clamp_max.default, aten.clamp_max.Tensor),
    (elementwise.compare, "EQUAL"): (aten.eq.Tensor, aten.eq.Scalar),
    (elementwise.not_equal,): (aten.ne.Tensor, aten.ne.Scalar),
    (elementwise.compare, "GREATER"): (aten.gt.Tensor, aten.gt.Scalar),
    (elementwise.compare, "LESS"): (aten.lt.Tensor, aten.lt.Scalar),
    (elementwise.compare_or_equal, "GREATER"): (aten.ge.Tensor, aten.ge.Scalar),
    (elementwise.compare_or_equal, "LESS"): (aten.le.Tensor, aten.le.Scalar),
    (elementwise.logical, "AND"): (aten.logical_and.default,),
    (elementwise.logical, "OR"): (aten.logical_or.default,),
    (elementwise.logical, "XOR"): (aten.logical_xor.default,),
    (elementwise.where,): (aten.where.self,),
    (elementwise.clamp,): (aten.clamp.default, aten.clamp.Tensor, aten.clip.default, aten.clip.Tensor),
}

SHIFTS: Mapping[tuple[Any, ...], tuple[Any, ...]] = {
    (elementwise_arithmetic.shift, left): (
        *(packet.Tensor, packet.Tensor_Scalar, packet.Scalar_Tensor),
        *(python.Tensor, python.Scalar),
    )
    for left, packet, python in (
        (True, aten.bitwise_left_shift, aten.__lshift__),
        (False, aten.bitwise_right_shift, aten.__rshift__),
    )
}

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)


def wrap_to_uint8(net: Net, operands: Sequence[Value]) -> Sequence[Value]:
    """Return the operands of the node `net.node`; if it combines them with uint8 tensors, wrap numbers and 0-d integers
    to uint8: -3 becomes 253. Networks represent uint8 as int32, so only the node shows which tensors are uint8."""
    node = net.node
    inputs = (n.meta["val"] for n in node.all_input_nodes)
    if not any(isinstance(v, torch.Tensor) and v.dtype == torch.uint8 for v in inputs):
        return operands
    given = bind(node.target, node.args, node.kwargs)
    metas = [v.meta["val"] if isinstance(v, torch.fx.Node) else v for v in given]
    taken = [m for m in metas if isinstance(m, torch.Tensor | int | float)]
    if base.result_type(*taken) != torch.uint8 or fake_result(net).dtype not in (torch.uint8, torch.bool):
        return operands

    def wrap(value: Any, meta: Any) -> Any:
        if isinstance(meta, torch.Tensor):
            return base.to_uint8(net, base.tensor(net, value)) if meta.dtype in INTEGERS else value
        return value % 256 if isinstance(value, int) and not isinstance(value, bool) else value

    return list(map(wrap, operands, metas))


@converts(rows_by_operator(TABLE), rows_by_operator(SHIFTS))
def binary(net: Net, block_and_arguments: tuple[Any, ...], *operands: Value) -> ITensor:
    """Convert an operator by its key in `TABLE` or `SHIFTS`, such as ``(compare, "LESS")``, see `call_block`."""
    return call_block(net, block_and_arguments, wrap_to_uint8(net, operands))


@converts(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(net: Net, input: Value, other: Value, alpha: Value) -> ITensor:
    """rsub(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"""
    input, other, alpha = wrap_to_uint8(net, (input, other, alpha))
    return cast_to_result(net, elementwise.add(net, "SUB", other, input, alpha))


@converts(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(net: Net, input: Value, mask: Value, value: Value) -> ITensor:
    """masked_fill(Tensor self, Tensor mask, Tensor value) -> Tensor"""
    input, mask, value = wrap_to_uint8(net, (input, mask, value))
    return elementwise.where(net, mask, value, input, base.dtype_of(input))


BITWISE: Mapping[tuple[Any, ...], tuple[Any, ...]] = {
    (elementwise_arithmetic.bitwise, name): (packet.Tensor, packet.Scalar, packet.Scalar_Tensor)
    for name, packet in (("AND", aten.bitwise_and), ("OR", aten.bitwise_or), ("XOR", aten.bitwise_xor))
}


def check_bitwise(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The rank must be at most 7, since integers are split along a new dim; 8 for bools and ``x & 2**k - 1``."""
    value = node.meta["val"]
    if value.dtype == torch.bool or value.dim() < 8 or elementwise_arithmetic.is_low_mask(node.args[1]):
        return True
    return Rejection(f"rank {value.dim()}: bit operations need one more dim, and TensorRT supports at most 8 dims")


@converts(rows_by_operator(BITWISE), validator=check_bitwise)
def bitwise(net: Net, block_and_arguments: tuple[Any, ...], *operands: Value) -> ITensor:
    """bitwise_and.Tensor(Tensor self, Tensor other) -> Tensor; also or, xor: the tuple is the key in `BITWISE`."""
    return call_block(net, block_and_arguments, operands)
