"""Joining and taking apart: concatenation, splitting, repeating."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.aten.arguments import bind
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.converters.results import converts
from pipeline.impl import base
from pipeline.impl.shape import concatenate, result_sizes, sizes_of, total
from pipeline.impl.shape import repeat as _repeat
from pipeline.impl.slice import narrow
from pipeline.network.context import ConversionContext

aten = torch.ops.aten


@dynamo_tensorrt_converter(aten.cat.default, supports_dynamic_shapes=True)
def cat(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """cat(Tensor[] tensors, int dim=0) -> Tensor. Tensors of shape [0] are left out, whatever rank the others have."""
    tensors, dim = bind(target, args, kwargs)
    assert ctx.node is not None
    value = ctx.node.meta["val"]
    parts = [t for t in tensors if base.rank(t) == value.dim() and (value.dim() > 1 or base.dims(t) != (0,))]
    return concatenate(ctx, name, parts or tensors[:1], dim, value.dtype)


@dynamo_tensorrt_converter(aten.stack.default, supports_dynamic_shapes=True)
def stack(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """stack(Tensor[] tensors, int dim=0) -> Tensor"""
    tensors, dim = bind(target, args, kwargs)
    assert ctx.node is not None
    value, dim = ctx.node.meta["val"], base.axis(dim, ctx.node.meta["val"].dim())
    if dim < value.dim() - 1 and all(isinstance(s, int) for s in sizes_of(value)[dim:]):
        joined = concatenate(ctx, name, tensors, dim, value.dtype)
        return base.reshape(ctx, name, joined, result_sizes(ctx))
    parts = [base.unsqueeze(ctx, name, base.tensor(ctx, name, t), [dim]) for t in tensors]
    return concatenate(ctx, name, parts, dim, value.dtype)


@converts(
    aten.split.Tensor,
    aten.split.sizes,
    aten.split_with_sizes.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
    aten.chunk.default,
)
def split(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """split_with_sizes(Tensor self, SymInt[] split_sizes, int dim=0) -> Tensor[]"""
    x, _, dim = bind(target, args, kwargs)
    x, dim = base.tensor(ctx, name, x), base.axis(dim, base.rank(x))
    assert ctx.node is not None
    sizes = [sizes_of(part)[dim] for part in ctx.node.meta["val"]]
    return [narrow(ctx, name, x, dim, total(sizes[:i]), size) for i, size in enumerate(sizes)]


@dynamo_tensorrt_converter(aten.repeat.default, supports_dynamic_shapes=True)
def repeat(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """repeat(Tensor self, SymInt[] repeats) -> Tensor"""
    x, repeats = bind(target, args, kwargs)
    x = base.tensor(ctx, name, x, rank=len(repeats))
    return _repeat(ctx, name, x, repeats, result_sizes(ctx))
