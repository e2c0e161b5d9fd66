"""Elementwise operators of two tensors: arithmetic, comparison, logic, selection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pipeline.converters.arguments import bind
from pipeline.converters.context import ConversionContext
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.impl import base, elementwise

aten = torch.ops.aten

Args = Sequence[Any]
Kwargs = Mapping[str, Any]
Binary = Callable[[ConversionContext, str, str, Any, Any], Any]

TABLE: Mapping[Any, tuple[Binary, str]] = {
    aten.mul.Tensor: (elementwise.binary, "PROD"),
    aten.mul.Scalar: (elementwise.binary, "PROD"),
    aten.maximum.default: (elementwise.extremum, "MAX"),
    aten.minimum.default: (elementwise.extremum, "MIN"),
    aten.eq.Tensor: (elementwise.compare, "EQUAL"),
    aten.eq.Scalar: (elementwise.compare, "EQUAL"),
    aten.gt.Tensor: (elementwise.compare, "GREATER"),
    aten.gt.Scalar: (elementwise.compare, "GREATER"),
    aten.lt.Tensor: (elementwise.compare, "LESS"),
    aten.lt.Scalar: (elementwise.compare, "LESS"),
    aten.ge.Tensor: (elementwise.compare_or_equal, "GREATER"),
    aten.ge.Scalar: (elementwise.compare_or_equal, "GREATER"),
    aten.le.Tensor: (elementwise.compare_or_equal, "LESS"),
    aten.le.Scalar: (elementwise.compare_or_equal, "LESS"),
    aten.logical_and.default: (elementwise.logical, "AND"),
    aten.logical_or.default: (elementwise.logical, "OR"),
    aten.logical_xor.default: (elementwise.logical, "XOR"),
}


def _from_table(target: Any, implementation: Binary, operation: str) -> Callable[..., Any]:
    @dynamo_tensorrt_converter(target, supports_dynamic_shapes=True)
    def convert(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
        return implementation(ctx, name, operation, *bind(target, args, kwargs))

    convert.__doc__ = str(target._schema)
    return convert


CONVERTERS = [_from_table(target, *row) for target, row in TABLE.items()]


@dynamo_tensorrt_converter(aten.add.Tensor, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.add.Scalar, supports_dynamic_shapes=True)
def add(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """add(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"""
    return elementwise.add(ctx, name, *bind(target, args, kwargs))


@dynamo_tensorrt_converter(aten.sub.Tensor, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.sub.Scalar, supports_dynamic_shapes=True)
def sub(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """sub(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"""
    return elementwise.add(ctx, name, *bind(target, args, kwargs), operation="SUB")


@dynamo_tensorrt_converter(aten.rsub.Tensor, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.rsub.Scalar, supports_dynamic_shapes=True)
def rsub(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """rsub(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"""
    self, other, alpha = bind(target, args, kwargs)
    return elementwise.add(ctx, name, other, self, alpha, operation="SUB")


@dynamo_tensorrt_converter(aten.ne.Tensor, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.ne.Scalar, supports_dynamic_shapes=True)
def ne(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """ne(Tensor self, Tensor other) -> Tensor"""
    return elementwise.not_equal(ctx, name, *bind(target, args, kwargs))


@dynamo_tensorrt_converter(aten.where.self, supports_dynamic_shapes=True)
def where(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """where(Tensor condition, Tensor self, Tensor other) -> Tensor"""
    return elementwise.where(ctx, name, *bind(target, args, kwargs))


@dynamo_tensorrt_converter(aten.masked_fill.Scalar, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.masked_fill.Tensor, supports_dynamic_shapes=True)
def masked_fill(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """masked_fill(Tensor self, Tensor mask, Tensor value) -> Tensor"""
    self, mask, value = bind(target, args, kwargs)
    return elementwise.where(ctx, name, mask, value, self, base.dtype_of(self))


@dynamo_tensorrt_converter(aten.clamp.default, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.clamp.Tensor, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.clip.default, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.clip.Tensor, supports_dynamic_shapes=True)
def clamp(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor"""
    return elementwise.clamp(ctx, name, *bind(target, args, kwargs))


@dynamo_tensorrt_converter(aten.clamp_min.default, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.clamp_min.Tensor, supports_dynamic_shapes=True)
def clamp_min(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """clamp_min(Tensor self, Scalar min) -> Tensor"""
    self, minimum = bind(target, args, kwargs)
    return elementwise.clamp(ctx, name, self, minimum, None)


@dynamo_tensorrt_converter(aten.clamp_max.default, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.clamp_max.Tensor, supports_dynamic_shapes=True)
def clamp_max(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """clamp_max(Tensor self, Scalar max) -> Tensor"""
    self, maximum = bind(target, args, kwargs)
    return elementwise.clamp(ctx, name, self, None, maximum)


@dynamo_tensorrt_converter(aten.div.Tensor, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.div.Scalar, supports_dynamic_shapes=True)
def div(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """div(Tensor self, Tensor other) -> Tensor"""
    return elementwise.divide(ctx, name, *bind(target, args, kwargs))
