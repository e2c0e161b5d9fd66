"""Tensors made from sizes and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.converters.arguments import bind
from pipeline.converters.context import ConversionContext, SymbolicInt
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.impl import base, creation
from pipeline.program import shape_of

aten = torch.ops.aten

Args = Sequence[Any]
Kwargs = Mapping[str, Any]


def _result(ctx: ConversionContext) -> tuple[list[Any], torch.dtype]:
    """The sizes and the dtype of the node's result."""
    assert ctx.node is not None
    value = ctx.node.meta["val"]
    return [s if isinstance(s, int) else SymbolicInt(s) for s in shape_of(value)], value.dtype


@dynamo_tensorrt_converter(aten.full.default, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.full_like.default, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.fill.Scalar, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.fill.Tensor, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.new_full.default, supports_dynamic_shapes=True)
def full(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, …) -> Tensor"""
    shape, dtype = _result(ctx)
    place = 2 if target is aten.new_full.default else 1
    return creation.full(ctx, name, shape, bind(target, args, kwargs)[place], dtype)


@dynamo_tensorrt_converter(aten.scalar_tensor.default, supports_dynamic_shapes=True)
def scalar_tensor(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """scalar_tensor(Scalar s, *, ScalarType? dtype=None, …) -> Tensor"""
    return base.tensor(ctx, name, args[0], _result(ctx)[1])


@dynamo_tensorrt_converter(aten.arange.start_step, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.arange.start, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.arange.default, supports_dynamic_shapes=True)
def arange(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, …) -> Tensor"""
    start = args[0] if target is not aten.arange.default else 0
    step = bind(target, args, kwargs)[2] if target is aten.arange.start_step else 1
    (length,), dtype = _result(ctx)
    return creation.arange(ctx, name, start, step, length, dtype)
