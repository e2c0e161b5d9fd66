"""Convert views (reshapes, permutations and expansions), casts, and operators that do nothing in an engine.

The shape of a view is read from the fake tensor of the result. An engine has no memory formats, storage or autograd, so
that ``clone`` or ``detach`` returns its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from pipeline.aten.own_ops import OPEN_MASK
from pipeline.converters.binding import aten, cast_to_result, converts, fake_result
from pipeline.converters.decompositions import register_torch_trt_decomposition
from pipeline.impl import base, elementwise_arithmetic, reduce
from pipeline.impl.base import ITensor, Net, Value
from pipeline.impl.shape import result_sizes

prims = torch.ops.prims


@converts(
    *(aten.view.default, aten.reshape.default, aten._reshape_copy.default, aten._unsafe_view.default),
    *(aten.flatten.using_ints, aten.unflatten.int),
)
def reshape(net: Net, input: Value) -> ITensor:
    """view(Tensor self, SymInt[] size) -> Tensor"""
    return base.reshape(net, base.tensor(net, input), result_sizes(net))


@converts(aten.permute.default)
def permute(net: Net, input: Value, dims: Sequence[int]) -> ITensor:
    """permute(Tensor self, int[] dims) -> Tensor"""
    return base.permute(net, base.tensor(net, input), dims)


@converts(aten.transpose.int)
def transpose(net: Net, input: Value, dim0: int, dim1: int) -> ITensor:
    """transpose.int(Tensor self, int dim0, int dim1) -> Tensor"""
    order = list(range(base.rank(input)))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return base.permute(net, base.tensor(net, input), order)


@converts(aten.t.default)
def t(net: Net, input: Value) -> ITensor:
    """t(Tensor self) -> Tensor"""
    x = base.tensor(net, input)
    return base.permute(net, x, range(base.rank(x))[::-1])


@converts(aten.expand.default)
def expand(net: Net, input: Value) -> ITensor:
    """expand(Tensor self, SymInt[] size, *, bool implicit=False) -> Tensor"""
    return base.expand(net, base.tensor(net, input), result_sizes(net))


@converts(prims.broadcast_in_dim.default)
def broadcast_in_dim(net: Net, a: Value, shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> ITensor:
    """broadcast_in_dim(Tensor a, SymInt[] shape, int[] broadcast_dimensions) -> Tensor"""
    new = [i for i in range(len(shape)) if i not in broadcast_dimensions]
    return base.expand(net, base.unsqueeze(net, base.tensor(net, a), new), result_sizes(net))


@converts(aten.unsqueeze.default)
def unsqueeze(net: Net, input: Value, dim: int) -> ITensor:
    """unsqueeze(Tensor self, int dim) -> Tensor"""
    x, sizes = base.tensor(net, input), result_sizes(net)
    if all(isinstance(s, int) for s in sizes):
        return base.reshape(net, x, sizes)
    return base.unsqueeze(net, x, [base.axis(dim, len(sizes))])


@converts(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(net: Net, input: Value, dim: Sequence[int] | int | None = None) -> ITensor:
    """squeeze.dims(Tensor(a) self, int[] dim) -> Tensor. A dynamic dim is kept, since its size is not 1."""
    x, sizes = base.tensor(net, input), result_sizes(net)
    if all(isinstance(s, int) for s in sizes):
        return base.reshape(net, x, sizes)
    dims = range(base.rank(x)) if dim is None else [dim] if isinstance(dim, int) else dim
    known = base.known_sizes(net, x)
    return base.squeeze(net, x, sorted({base.axis(d, base.rank(x)) for d in dims if known[d] == 1}))


COPIES = {aten.select_copy.int: aten.select.int, aten.slice_copy.Tensor: aten.slice.Tensor}
"""For each operator that copies a view, and that torch does not decompose, the view operator: an engine writes nothing
in place, so both are equal."""


DECOMPOSITIONS = [register_torch_trt_decomposition(copy)(partial(view)) for copy, view in COPIES.items()]


@converts(aten._to_copy.default, prims.convert_element_type.default)
def to_copy(net: Net, *operands: Value) -> ITensor:
    """_to_copy(Tensor self, *, ScalarType? dtype=None, …, MemoryFormat? memory_format=None) -> Tensor;
    prims::convert_element_type(Tensor a, ScalarType dtype) -> Tensor. A cast of uint8 to uint8 changes nothing."""
    value, byte = base.tensor(net, operands[0]), torch.uint8
    is_byte = fake_result(net).dtype == byte and net.node.all_input_nodes[-1].meta["val"].dtype == byte
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
    """Decompose ``copy``: return ``src``, cast and broadcast to ``self``, of which only dtype and shape are read."""
    value = src if src.dtype == self.dtype else src.to(self.dtype)
    return value if statically_known_true(sym_eq(value.shape, self.shape)) else value.expand(self.shape)


@converts(prims.div.default)
def div(net: Net, input: Value, other: Value) -> ITensor:
    """prims::div(Tensor self, Tensor other) -> Tensor. Integers are divided toward zero."""
    rounding = None if fake_result(net).dtype.is_floating_point else "trunc"
    return cast_to_result(net, elementwise_arithmetic.divide(net, input, other, rounding))


@converts(prims.sum.default)
def sum(net: Net, inp: Value, dims: Sequence[int] | None) -> ITensor:
    """prims::sum(Tensor inp, int[]? dims, *, ScalarType? output_dtype=None) -> Tensor"""
    if dims == []:  # reduces no dim here, all dims in aten.sum
        return cast_to_result(net, base.tensor(net, inp))
    return cast_to_result(net, reduce.total(net, "SUM", inp, dims, False, fake_result(net).dtype))
