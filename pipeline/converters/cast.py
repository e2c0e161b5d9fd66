"""Convert casts, torch's primitives (``prims``), and operators that return their input unchanged in an engine.
torch's decompositions produce the primitives. An engine has no memory formats, storage or autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from pipeline.aten.own_ops import OPEN_MASK
from pipeline.aten.types import aten
from pipeline.converters.binding import cast_to_result, converts, result_tensor
from pipeline.converters.decompositions import register_torch_trt_decomposition
from pipeline.impl import base, elementwise_arithmetic, reduce
from pipeline.impl.base import ITensor, Value
from pipeline.network.net import Net

prims = torch.ops.prims


@converts(aten._to_copy.default, prims.convert_element_type.default)
def to_copy(net: Net, *operands: Value) -> ITensor:
    """_to_copy(Tensor self, *, ScalarType? dtype=None, …, MemoryFormat? memory_format=None) -> Tensor;
    prims::convert_element_type(Tensor a, ScalarType dtype) -> Tensor. A cast of uint8 to uint8 changes nothing."""
    value, byte = base.tensor(net, operands[0]), torch.uint8
    is_byte = result_tensor(net).dtype == byte and net.node.all_input_nodes[-1].meta["val"].dtype == byte
    return value if is_byte else cast_to_result(net, value)


@converts(
    *(aten.alias.default, aten.alias_copy.default, aten.clone.default, aten.detach.default, aten.detach_copy.default),
    *(aten.lift.default, aten.lift_fresh.default, aten.lift_fresh_copy.default, OPEN_MASK),
)
def identity(net: Net, *operands: Value) -> Value:
    """clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor; pipeline::open_mask(Tensor mask) -> Tensor"""
    return operands[0]


@register_torch_trt_decomposition(aten.copy.default)
def copy(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> Any:
    """Replace a copy by its cast and broadcast source; of the overwritten tensor the engine reads only the shape."""
    value = src if src.dtype == self.dtype else src.to(self.dtype)
    return value if statically_known_true(sym_eq(value.shape, self.shape)) else value.expand(self.shape)


@converts(prims.div.default)
def div(net: Net, input: Value, other: Value) -> ITensor:
    """prims::div(Tensor self, Tensor other) -> Tensor. Integers are divided toward zero."""
    rounding = None if result_tensor(net).dtype.is_floating_point else "trunc"
    return cast_to_result(net, elementwise_arithmetic.divide(net, input, other, rounding))


@converts(prims.sum.default)
def sum(net: Net, inp: Value, dims: Sequence[int] | None) -> ITensor:
    """prims::sum(Tensor inp, int[]? dims, *, ScalarType? output_dtype=None) -> Tensor"""
    if dims == []:  # reduces no dim here, all dims in aten.sum
        return cast_to_result(net, base.tensor(net, inp))
    return cast_to_result(net, reduce.total(net, "SUM", inp, dims, False, result_tensor(net).dtype))
