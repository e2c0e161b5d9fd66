"""Convert views: reshapes, permutations and expansions. The shape is read from the fake tensor of the result."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from pipeline.converters.binding import converts
from pipeline.converters.decompositions import register_torch_trt_decomposition
from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.shape import result_sizes
from pipeline.network.net import Net

aten, prims = torch.ops.aten, torch.ops.prims


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


COPIES = {
    aten.diagonal_copy.default: aten.diagonal.default,
    aten.expand_copy.default: aten.expand.default,
    aten.permute_copy.default: aten.permute.default,
    aten.select_copy.int: aten.select.int,
    aten.slice_copy.Tensor: aten.slice.Tensor,
    aten.split_with_sizes_copy.default: aten.split_with_sizes.default,
    aten.squeeze_copy.default: aten.squeeze.default,
    aten.squeeze_copy.dim: aten.squeeze.dim,
    aten.squeeze_copy.dims: aten.squeeze.dims,
    aten.t_copy.default: aten.t.default,
    aten.transpose_copy.int: aten.transpose.int,
    aten.unbind_copy.int: aten.unbind.int,
    aten.unfold_copy.default: aten.unfold.default,
    aten.unsqueeze_copy.default: aten.unsqueeze.default,
    aten.view_copy.default: aten.view.default,
}
"""For each operator that copies a view, the view operator; an engine writes nothing in place, so both are equal."""


DECOMPOSITIONS = [register_torch_trt_decomposition(copy)(partial(view)) for copy, view in COPIES.items()]
