"""Masks: triangles, one-hot, and elements that replace those that a mask selects."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pipeline.aten.arguments import argument
from pipeline.converters.binding import converts
from pipeline.converters.declare import Rejection
from pipeline.converters.index_data import MASKS
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


def _cumulative(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """TensorRT has cumulative sums (10.8), by which the n-th element that is picked finds the n-th of the source."""
    return CAPABILITIES.cumulative or Rejection(f"{LIBRARY} has no cumulative sum")


def _counted(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """One mask, and the program knows how many elements it picks."""
    given = [each for each in argument(node, "indices") if each is not None]
    if len(given) != 1 or given[0].meta["val"].dtype not in MASKS:
        return Rejection("these are no indices by one mask")
    if free_unbacked_symbols(node.meta["val"]):
        return Rejection("how many elements the mask picks is data", "torch.where, or masked_fill, keeps the shape")
    return _cumulative(node, settings)


@converts(aten.index.Tensor, validator=_counted)
def index_by_counted_mask(net: Net, input: Value, indices: Sequence[Value | None]) -> ITensor:
    """index.Tensor(Tensor self, Tensor?[] indices) -> Tensor, for a mask that picks as many elements as the program
    says."""
    dim = next(i for i, each in enumerate(indices) if each is not None)
    return index_masks.picked(net, base.tensor(net, input), indices[dim], dim, result_sizes(net)[dim])


@converts(aten.masked_scatter.default, validator=_cumulative)
def masked_scatter(net: Net, input: Value, mask: Value, source: Value) -> ITensor:
    """masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor"""
    whole = base.expand(net, base.tensor(net, input), result_sizes(net))
    return index_masks.masked_scatter(net, whole, mask, source)
