"""Picking elements by index tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.aten.arguments import argument
from pipeline.converters.binding import converts
from pipeline.converters.declare import Rejection
from pipeline.converters.index_signs import counted
from pipeline.impl import base
from pipeline.impl import index as _index
from pipeline.impl.base import ITensor, Value
from pipeline.impl.shape import result_sizes
from pipeline.network.net import Net
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


@converts(aten.index.Tensor, validator=_no_mask)
def index(net: Net, input: Value, indices: Sequence[Value | None]) -> ITensor:
    """index.Tensor(Tensor self, Tensor?[] indices) -> Tensor. Negative indices count from the end."""
    return _index.index(net, base.tensor(net, input), indices, counted(argument(net.node, "indices")))


@converts(aten.index_select.default)
def index_select(net: Net, input: Value, dim: int, index: Value) -> ITensor:
    """index_select(Tensor self, int dim, Tensor index) -> Tensor"""
    return _index.index_select(net, base.tensor(net, input), dim, index)


@converts(aten.gather.default)
def gather(net: Net, input: Value, dim: int, index: Value) -> ITensor:
    """gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor"""
    input = base.tensor(net, input)
    if base.rank(input) == 0:
        return base.expand(net, input, result_sizes(net))
    return _index.gather(net, input, index, dim)
