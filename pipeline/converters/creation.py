"""Tensors made from sizes and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.converters.arguments import argument, bind
from pipeline.converters.context import ConversionContext
from pipeline.converters.declare import Rejection, dynamo_tensorrt_converter
from pipeline.converters.results import as_result, result_of
from pipeline.impl import base, creation
from pipeline.impl.shape import result_sizes
from pipeline.settings import CompilationSettings

aten = torch.ops.aten

Args = Sequence[Any]
Kwargs = Mapping[str, Any]


@dynamo_tensorrt_converter(aten.full.default, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.full_like.default, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.fill.Scalar, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.fill.Tensor, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.new_full.default, supports_dynamic_shapes=True)
def full(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, …) -> Tensor"""
    place = 2 if target is aten.new_full.default else 1
    value = bind(target, args, kwargs)[place]
    return creation.full(ctx, name, result_sizes(ctx), value, result_of(ctx).dtype)


@dynamo_tensorrt_converter(aten.empty.memory_format, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.empty_permuted.default, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.empty_strided.default, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.empty_like.default, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.new_empty.default, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.new_empty_strided.default, supports_dynamic_shapes=True)
def empty(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, …) -> Tensor. Any value will do: zeros."""
    return creation.full(ctx, name, result_sizes(ctx), 0, result_of(ctx).dtype)


@dynamo_tensorrt_converter(aten.scalar_tensor.default, supports_dynamic_shapes=True)
def scalar_tensor(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """scalar_tensor(Scalar s, *, ScalarType? dtype=None, …) -> Tensor"""
    return as_result(ctx, name, base.tensor(ctx, name, args[0], result_of(ctx).dtype))


@dynamo_tensorrt_converter(aten.arange.start_step, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.arange.start, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.arange.default, supports_dynamic_shapes=True)
def arange(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, …) -> Tensor"""
    start = args[0] if target is not aten.arange.default else 0
    step = bind(target, args, kwargs)[2] if target is aten.arange.start_step else 1
    (length,) = result_sizes(ctx)
    return creation.arange(ctx, name, start, step, length, result_of(ctx).dtype)


def without_chance(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """In training, dropout draws random numbers, and only PyTorch draws those that eager draws."""
    train, p = argument(node, "train"), argument(node, "p")
    return train is False or p == 0 or Rejection("in training, dropout draws random numbers", "call model.eval() first")


@dynamo_tensorrt_converter(
    aten.native_dropout.default, capability_validator=without_chance, supports_dynamic_shapes=True
)
def native_dropout(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)"""
    return args[0], creation.full(ctx, name, result_sizes(ctx), True, torch.bool)
