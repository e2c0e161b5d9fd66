"""Casts, and operators that give their argument back: memory, storage and autograd mean nothing in an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.converters.arguments import bind
from pipeline.converters.context import ConversionContext
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.impl import base

aten = torch.ops.aten

Args = Sequence[Any]
Kwargs = Mapping[str, Any]


@dynamo_tensorrt_converter(aten._to_copy.default, supports_dynamic_shapes=True)
def _to_copy(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """_to_copy(Tensor self, *, ScalarType? dtype=None, …, MemoryFormat? memory_format=None) -> Tensor"""
    self, dtype, *_ = bind(target, args, kwargs)
    return base.tensor(ctx, name, self, dtype)


@dynamo_tensorrt_converter(aten.alias.default, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.clone.default, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.detach.default, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.detach_copy.default, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.alias_copy.default, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.lift.default, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.lift_fresh.default, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.lift_fresh_copy.default, supports_dynamic_shapes=True)
def identity(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor"""
    return args[0]


@dynamo_tensorrt_converter(aten.copy.default, supports_dynamic_shapes=True)
def copy(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor"""
    self, src, *_ = bind(target, args, kwargs)
    return base.expand(ctx, name, base.tensor(ctx, name, src, base.dtype_of(self)), base.known_sizes(ctx, self))
