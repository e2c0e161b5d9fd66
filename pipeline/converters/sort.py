"""Convert topk, sort, and the indices of extrema."""

from __future__ import annotations

import torch

from pipeline.aten.arguments import argument
from pipeline.converters.binding import converts
from pipeline.converters.declare import Rejection
from pipeline.impl import sort as _sort
from pipeline.impl.base import ITensor, Value
from pipeline.network.net import Net
from pipeline.settings import CompilationSettings
from pipeline.shapes.environment import largest

aten = torch.ops.aten


def k_up_to_3840(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """TensorRT's TopK takes k up to 3840."""
    k = argument(node, "k")
    size = k.meta["val"] if isinstance(k, torch.fx.Node) else k
    return largest(size) <= _sort.MAX_K or Rejection(f"k is {k}, TensorRT takes at most {_sort.MAX_K}")


def length_up_to_3840(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """A sort is a TopK of all elements; TensorRT takes up to 3840."""
    self, dim = argument(node, "self").meta["val"], argument(node, "dim")
    length = self.shape[dim] if self.dim() else 1
    if largest(length) <= _sort.MAX_K:
        return True
    return Rejection(f"dim {dim} has up to {length} elements, TensorRT sorts at most {_sort.MAX_K}")


@converts(aten.topk.default, validator=k_up_to_3840)
def topk(net: Net, input: Value, k: int, dim: int, largest: bool) -> tuple[ITensor | None, ...]:
    """topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor, Tensor)"""
    return _sort.topk(net, input, k, dim, largest)


@converts(aten.sort.default, validator=length_up_to_3840)
def sort(net: Net, input: Value, dim: int, descending: bool) -> tuple[ITensor | None, ...]:
    """sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)"""
    return _sort.sort(net, input, dim, descending, stable=False)


@converts(aten.sort.stable, validator=length_up_to_3840)
def sort_stable(net: Net, input: Value, stable: bool | None, dim: int, descending: bool) -> tuple[ITensor | None, ...]:
    """sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor, Tensor)"""
    return _sort.sort(net, input, dim, descending, bool(stable))


@converts({aten.max.dim: True, aten.min.dim: False})
def extremum(net: Net, largest: bool, input: Value, dim: int, keepdim: bool) -> tuple[ITensor, ITensor]:
    """max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    return _sort.extremum(net, largest, input, dim, keepdim)


@converts({aten.argmax.default: True, aten.argmin.default: False})
def index_of_extremum(net: Net, largest: bool, input: Value, dim: int | None, keepdim: bool) -> ITensor:
    """argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor"""
    return _sort.index_of_extremum(net, largest, input, dim, keepdim)
