"""Convert operators that join and split tensors: concatenation, splits, repetition."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.converters.binding import converts
from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.shape import concatenate, result_sizes, sizes_of, total
from pipeline.impl.shape import repeat as _repeat
from pipeline.impl.slice import narrow
from pipeline.network.net import Net

aten = torch.ops.aten


@converts(aten.cat.default)
def cat(net: Net, tensors: Sequence[Value], dim: int) -> ITensor:
    """cat(Tensor[] tensors, int dim=0) -> Tensor. Tensors of shape [0] are left out, whatever rank the others have."""
    value = net.node.meta["val"]
    parts = [t for t in tensors if base.rank(t) == value.dim() and (value.dim() > 1 or base.dims(t) != (0,))]
    return concatenate(net, parts or tensors[:1], dim, value.dtype)


@converts(aten.stack.default)
def stack(net: Net, tensors: Sequence[Value], dim: int) -> ITensor:
    """stack(Tensor[] tensors, int dim=0) -> Tensor"""
    value, dim = net.node.meta["val"], base.axis(dim, net.node.meta["val"].dim())
    if dim < value.dim() - 1 and all(isinstance(s, int) for s in sizes_of(value)[dim:]):
        joined = concatenate(net, tensors, dim, value.dtype)
        return base.reshape(net, joined, result_sizes(net))
    parts = [base.unsqueeze(net, base.tensor(net, t), [dim]) for t in tensors]
    return concatenate(net, parts, dim, value.dtype)


@converts(
    aten.split.Tensor,
    aten.split.sizes,
    aten.split_with_sizes.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
    aten.chunk.default,
)
def split(net: Net, input: Value, dim: int) -> list[ITensor]:
    """split_with_sizes(Tensor self, SymInt[] split_sizes, int dim=0) -> Tensor[]"""
    input, dim = base.tensor(net, input), base.axis(dim, base.rank(input))
    sizes = [sizes_of(part)[dim] for part in net.node.meta["val"]]
    return [narrow(net, input, dim, total(sizes[:i]), size) for i, size in enumerate(sizes)]


@converts(aten.repeat.default)
def repeat(net: Net, input: Value, repeats: Sequence[int]) -> ITensor:
    """repeat(Tensor self, SymInt[] repeats) -> Tensor"""
    input = base.tensor(net, input, rank=len(repeats))
    return _repeat(net, input, repeats, result_sizes(net))
