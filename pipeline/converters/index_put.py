"""Convert writes at index tensors and masks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.aten.arguments import argument
from pipeline.converters.binding import converts
from pipeline.converters.declare import Rejection
from pipeline.converters.decompositions import register_torch_trt_decomposition
from pipeline.converters.index_signs import counted
from pipeline.converters.scatter import compared
from pipeline.impl import base
from pipeline.impl import index_put as _index_put
from pipeline.impl.base import ITensor, Value
from pipeline.network.net import Net
from pipeline.settings import CompilationSettings

aten = torch.ops.aten

INTEGERS = (torch.int32, torch.int64)


def _tensors(node: torch.fx.Node) -> list[tuple[int, torch.Tensor]]:
    """Return the index tensors, each with its position."""
    given = argument(node, "indices")
    return [(i, each.meta["val"]) for i, each in enumerate(given) if each is not None]


def _writable(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Integer indices, or one mask; to accumulate, every index is compared with every place, in 2**31 - 1 elements at
    most."""
    tensors, x = _tensors(node), argument(node, "self").meta["val"]
    if all(t.dtype in INTEGERS for _, t in tensors):
        return _countable(node, x, tensors) if argument(node, "accumulate") else True
    if len(tensors) > 1:
        return Rejection("a mask beside other indices: how many elements it picks is data", "use torch.where")
    return True


def _countable(node: torch.fx.Node, x: torch.Tensor, tensors: list[tuple[int, torch.Tensor]]) -> bool | Rejection:
    if x.dim() - len(tensors) > 6:
        return Rejection("accumulates into a tensor of rank 8, which takes one of rank 9", "flatten two of its dims")
    return compared(*x.shape, *torch.broadcast_shapes(*(t.shape for _, t in tensors)))


@register_torch_trt_decomposition(aten.put.default)
def put(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    """put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor"""
    row: torch.Tensor = aten.index_put(x.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate)
    return row.reshape(x.shape)


@converts(aten.index_put.default, validator=_writable)
def index_put(net: Net, input: Value, indices: Sequence[Value | None], values: Value, accumulate: bool) -> ITensor:
    """index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor"""
    input = base.tensor(net, input)
    place, given = _tensors(net.node)[0]
    if given.dtype not in INTEGERS:
        return _index_put.mask_put(net, input, indices[place], place, values, accumulate)
    signs = counted(argument(net.node, "indices"))
    return _index_put.index_put(net, input, indices, values, accumulate, signs)
