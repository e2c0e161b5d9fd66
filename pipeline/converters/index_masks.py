"""Convert mask operators: triangles, one-hot, and masked scatter."""

from __future__ import annotations

import torch

from pipeline.aten.arguments import argument
from pipeline.converters.binding import converts
from pipeline.converters.declare import Rejection
from pipeline.impl import base, index_masks
from pipeline.impl.base import ITensor, Value
from pipeline.impl.shape import result_sizes
from pipeline.network.net import Net
from pipeline.settings import CompilationSettings
from pipeline.trt import CAPABILITIES, LIBRARY

aten = torch.ops.aten


@converts(aten.tril.default)
def tril(net: Net, input: Value, diagonal: int) -> ITensor:
    """tril(Tensor self, SymInt diagonal=0) -> Tensor"""
    return index_masks.triangle(net, base.tensor(net, input), diagonal, lower=True)


@converts(aten.triu.default)
def triu(net: Net, input: Value, diagonal: int) -> ITensor:
    """triu(Tensor self, SymInt diagonal=0) -> Tensor"""
    return index_masks.triangle(net, base.tensor(net, input), diagonal, lower=False)


def _has_classes(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The number of classes is given."""
    classes = argument(node, "num_classes")
    if isinstance(classes, int) and classes > 0:
        return True
    return Rejection("the number of classes is the largest index, which is data", "give one_hot its num_classes")


@converts(aten.one_hot.default, validator=_has_classes)
def one_hot(net: Net, input: Value, num_classes: int) -> ITensor:
    """one_hot(Tensor self, int num_classes=-1) -> Tensor"""
    return index_masks.one_hot(net, input, num_classes)


def has_running_sums(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """TensorRT has cumulative sums (10.8), by which the n-th element that is picked finds the n-th of the source."""
    return CAPABILITIES.cumulative or Rejection(f"{LIBRARY} has no cumulative sum")


@converts(aten.masked_scatter.default, validator=has_running_sums)
def masked_scatter(net: Net, input: Value, mask: Value, source: Value) -> ITensor:
    """masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor"""
    whole = base.expand(net, base.tensor(net, input), result_sizes(net))
    return index_masks.masked_scatter(net, whole, mask, source)
