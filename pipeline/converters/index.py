"""Convert reads at index tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pipeline.aten.arguments import argument
from pipeline.converters.binding import converts
from pipeline.converters.declare import Rejection
from pipeline.converters.index_masks import has_running_sums
from pipeline.converters.index_signs import counted
from pipeline.impl import base, index_masks
from pipeline.impl import index as _index
from pipeline.impl.base import ITensor, Value
from pipeline.impl.shape import result_sizes
from pipeline.network.net import Net
from pipeline.settings import CompilationSettings

aten = torch.ops.aten


def _counted(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Indices are integers, or one mask of which the program knows how many elements it picks."""
    dtypes = _dtypes(node)
    masks = [(each, dtype) for each, dtype in dtypes if dtype not in (torch.int32, torch.int64)]
    if not masks:
        return True
    if len(dtypes) == 1 and _is_mask(node) and not free_unbacked_symbols(node.meta["val"]):
        return has_running_sums(node, settings)
    return Rejection(
        "{} is a mask ({}): the shape of the result depends on its values".format(*masks[0]),
        "torch.where, or masked_fill, keeps the shape",
    )


def _dtypes(node: torch.fx.Node) -> list[tuple[object, torch.dtype]]:
    """Return the indices that are not None, with their dtypes."""
    given = (each for each in argument(node, "indices") if each is not None)
    return [(each, (each.meta["val"] if isinstance(each, torch.fx.Node) else each).dtype) for each in given]


def _is_mask(node: torch.fx.Node) -> bool:
    return [dtype for _, dtype in _dtypes(node)] == [torch.bool]


@converts(aten.index.Tensor, validator=_counted)
def index(net: Net, input: Value, indices: Sequence[Value | None]) -> ITensor:
    """index.Tensor(Tensor self, Tensor?[] indices) -> Tensor. Negative indices count from the end; the number of
    elements that a mask selects is the program's."""
    x = base.tensor(net, input)
    if _is_mask(net.node):
        dim = next(i for i, each in enumerate(indices) if each is not None)
        return index_masks.picked(net, x, indices[dim], dim, result_sizes(net)[dim])
    return _index.index(net, x, indices, counted(argument(net.node, "indices")))


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
