"""Picking elements by index tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.aten.arguments import argument, bind
from pipeline.converters.declare import Rejection, dynamo_tensorrt_converter
from pipeline.converters.index_signs import counted
from pipeline.impl import base
from pipeline.impl import index as _index
from pipeline.impl.shape import result_sizes
from pipeline.network.context import ConversionContext
from pipeline.settings import CompilationSettings

aten = torch.ops.aten


def _no_mask(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Indices are integers: how many elements a mask picks depends on the data."""
    for each in argument(node, "indices"):
        value = each.meta["val"] if isinstance(each, torch.fx.Node) else each
        if value is not None and value.dtype not in (torch.int32, torch.int64):
            return Rejection(
                f"{each} is a mask ({value.dtype}): the shape of the result depends on its values",
                "torch.where, or masked_fill, keeps the shape",
            )
    return True


@dynamo_tensorrt_converter(aten.index.Tensor, capability_validator=_no_mask, supports_dynamic_shapes=True)
def index(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """index.Tensor(Tensor self, Tensor?[] indices) -> Tensor. Negative indices count from the end."""
    x, indices = bind(target, args, kwargs)
    assert ctx.node is not None
    return _index.index(ctx, name, base.tensor(ctx, name, x), indices, counted(argument(ctx.node, "indices")))


@dynamo_tensorrt_converter(aten.index_select.default, supports_dynamic_shapes=True)
def index_select(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """index_select(Tensor self, int dim, Tensor index) -> Tensor"""
    x, dim, indices = bind(target, args, kwargs)
    return _index.index_select(ctx, name, base.tensor(ctx, name, x), dim, indices)


@dynamo_tensorrt_converter(aten.gather.default, supports_dynamic_shapes=True)
def gather(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor"""
    x, dim, indices, _ = bind(target, args, kwargs)
    x = base.tensor(ctx, name, x)
    if base.rank(x) == 0:
        return base.expand(ctx, name, x, result_sizes(ctx))
    return _index.gather(ctx, name, x, indices, dim)
