"""Slices: part of a tensor, in order, in steps, backwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.converters.arguments import bind
from pipeline.converters.context import ConversionContext
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.impl import base
from pipeline.impl.shape import result_sizes
from pipeline.impl.slice import first, narrow

aten = torch.ops.aten


@dynamo_tensorrt_converter(aten.slice_copy.Tensor, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.slice.Tensor, supports_dynamic_shapes=True)
def slice_(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """slice.Tensor(Tensor self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor"""
    x, dim, start, _, step = bind(target, args, kwargs)
    x, dim = base.tensor(ctx, name, x), base.axis(dim, base.rank(x))
    return narrow(ctx, name, x, dim, first(ctx, start, base.known_sizes(ctx, x)[dim]), result_sizes(ctx)[dim], step)


@dynamo_tensorrt_converter(aten.select_copy.int, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.select.int, supports_dynamic_shapes=True)
def select(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """select.int(Tensor self, int dim, SymInt index) -> Tensor"""
    x, dim, index = bind(target, args, kwargs)
    x, dim = base.tensor(ctx, name, x), base.axis(dim, base.rank(x))
    return select_(ctx, name, x, dim, index)


def select_(ctx: ConversionContext, name: str, x: Any, dim: int, index: Any) -> Any:
    """One element of a dim, which goes."""
    one = narrow(ctx, name, x, dim, first(ctx, index, base.known_sizes(ctx, x)[dim]), 1)
    sizes = [s for i, s in enumerate(base.known_sizes(ctx, x)) if i != dim]
    if all(isinstance(s, int) for s in sizes):
        return base.reshape(ctx, name, one, sizes)
    return base.squeeze(ctx, name, one, [dim])


@dynamo_tensorrt_converter(aten.unbind.int, supports_dynamic_shapes=True)
def unbind(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """unbind.int(Tensor self, int dim=0) -> Tensor[]"""
    x, dim = bind(target, args, kwargs)
    x, dim = base.tensor(ctx, name, x), base.axis(dim, base.rank(x))
    assert ctx.node is not None
    return [select_(ctx, name, x, dim, i) for i in range(len(ctx.node.meta["val"]))]
