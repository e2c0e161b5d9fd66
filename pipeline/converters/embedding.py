"""Rows of a table."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.aten.arguments import argument, bind
from pipeline.converters.declare import Rejection, dynamo_tensorrt_converter
from pipeline.converters.results import converts
from pipeline.converters.scatter import compared
from pipeline.impl import base
from pipeline.impl import embedding as _embedding
from pipeline.impl.shape import sizes_of
from pipeline.network.context import ConversionContext
from pipeline.settings import CompilationSettings

aten = torch.ops.aten


@dynamo_tensorrt_converter(aten.embedding.default, supports_dynamic_shapes=True)
def embedding(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False)
    -> Tensor"""
    weight, indices, *_ = bind(target, args, kwargs)
    return _embedding.embedding(ctx, name, weight, indices)


def _bags_only(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Only the bags are asked for, not what the gradient needs; bags times indices times columns: 2**31 - 1 at most."""
    for user in node.users:
        if user.target is not operator.getitem or user.args[1] != 0:
            return Rejection(f"{user.name} reads what the gradient needs: an engine gives the bags only")
    weight, indices = argument(node, "weight").meta["val"], argument(node, "indices").meta["val"]
    if indices.dim() != 1:
        return Rejection(f"the indices have rank {indices.dim()}, and offsets go with a row of them")
    return compared(node.meta["val"][0].shape[0], indices.shape[0], weight.shape[1])


@converts(aten._embedding_bag.default, aten._embedding_bag_forward_only.default, validator=_bags_only)
def embedding_bag(
    ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> Any:
    """_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0,
    bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1)
    -> (Tensor, Tensor, Tensor, Tensor)"""
    weight, indices, offsets, _, mode, _, scale, _, padding = bind(target, args, kwargs)
    assert ctx.node is not None
    bags = sizes_of(ctx.node.meta["val"][0])[0]
    bag = _embedding.embedding_bag(
        ctx, name, weight, base.tensor(ctx, name, indices), offsets, bags, _embedding.MODES[mode], scale, padding
    )
    return bag, None, None, None
