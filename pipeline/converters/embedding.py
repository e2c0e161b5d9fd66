"""Convert embeddings: rows of a table."""

from __future__ import annotations

import operator

import torch

from pipeline.aten.arguments import argument
from pipeline.aten.types import aten
from pipeline.converters.binding import converts
from pipeline.converters.declare import Rejection
from pipeline.converters.scatter import compared
from pipeline.impl import base
from pipeline.impl import embedding as _embedding
from pipeline.impl.base import ITensor, Value
from pipeline.impl.shape import sizes_of
from pipeline.network.net import Net
from pipeline.settings import CompilationSettings


@converts(aten.embedding.default)
def embedding(net: Net, weight: Value, indices: Value) -> ITensor:
    """embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False)
    -> Tensor"""
    return _embedding.embedding(net, weight, indices)


def _bags_only(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Only the bags are asked for, not what the gradient needs; bags times indices times columns: 2**31 - 1 at most."""
    for user in node.users:
        if user.target is not operator.getitem or user.args[1] != 0:
            return Rejection(f"{user.name} reads a result for the gradient: an engine returns the bags only")
    weight, indices = argument(node, "weight").meta["val"], argument(node, "indices").meta["val"]
    if indices.dim() != 1:
        return Rejection(f"the indices have rank {indices.dim()}; offsets need indices of rank 1")
    return compared(node.meta["val"][0].shape[0], indices.shape[0], weight.shape[1])


@converts(aten._embedding_bag.default, aten._embedding_bag_forward_only.default, validator=_bags_only)
def embedding_bag(
    net: Net,
    weight: Value,
    indices: Value,
    offsets: Value,
    mode: int,
    per_sample_weights: Value | None,
    padding_idx: int,
) -> tuple[ITensor | None, ...]:
    """_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0,
    bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1)
    -> (Tensor, Tensor, Tensor, Tensor)"""
    bags = sizes_of(net.node.meta["val"][0])[0]
    bag = _embedding.embedding_bag(
        net, weight, base.tensor(net, indices), offsets, bags, _embedding.MODES[mode], per_sample_weights, padding_idx
    )
    return bag, None, None, None
