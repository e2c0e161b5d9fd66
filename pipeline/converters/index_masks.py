"""Masks: triangles, one-hot, and elements that take the place of what a mask picks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.aten.arguments import argument, bind
from pipeline.converters.declare import Rejection, dynamo_tensorrt_converter
from pipeline.impl import base, index_masks
from pipeline.impl.shape import result_sizes
from pipeline.network.context import ConversionContext
from pipeline.settings import CompilationSettings
from pipeline.trt import CAPABILITIES, LIBRARY

aten = torch.ops.aten


@dynamo_tensorrt_converter(aten.tril.default, supports_dynamic_shapes=True)
def tril(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """tril(Tensor self, SymInt diagonal=0) -> Tensor"""
    x, diagonal = bind(target, args, kwargs)
    return index_masks.triangle(ctx, name, base.tensor(ctx, name, x), diagonal, lower=True)


@dynamo_tensorrt_converter(aten.triu.default, supports_dynamic_shapes=True)
def triu(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """triu(Tensor self, SymInt diagonal=0) -> Tensor"""
    x, diagonal = bind(target, args, kwargs)
    return index_masks.triangle(ctx, name, base.tensor(ctx, name, x), diagonal, lower=False)


def _has_classes(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The number of classes is given."""
    classes = argument(node, "num_classes")
    if isinstance(classes, int) and classes > 0:
        return True
    return Rejection("the number of classes is the largest index, which is data", "give one_hot its num_classes")


@dynamo_tensorrt_converter(aten.one_hot.default, capability_validator=_has_classes, supports_dynamic_shapes=True)
def one_hot(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """one_hot(Tensor self, int num_classes=-1) -> Tensor"""
    return index_masks.one_hot(ctx, name, *bind(target, args, kwargs))


def _cumulative(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """TensorRT has cumulative sums (10.8), by which the n-th element that is picked finds the n-th of the source."""
    return CAPABILITIES.cumulative or Rejection(f"{LIBRARY} has no cumulative sum")


@dynamo_tensorrt_converter(aten.masked_scatter.default, capability_validator=_cumulative, supports_dynamic_shapes=True)
def masked_scatter(
    ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> Any:
    """masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor"""
    x, mask, source = bind(target, args, kwargs)
    whole = base.expand(ctx, name, base.tensor(ctx, name, x), result_sizes(ctx))
    return index_masks.masked_scatter(ctx, name, whole, mask, source)
