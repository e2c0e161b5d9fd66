"""Activation functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pipeline.converters.arguments import bind
from pipeline.converters.context import ConversionContext
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.impl import activation

aten = torch.ops.aten

Args = Sequence[Any]
Kwargs = Mapping[str, Any]

SMOOTH = {aten.sigmoid.default: "SIGMOID", aten.tanh.default: "TANH"}


def _smooth(target: Any, kind: str) -> Callable[..., Any]:
    @dynamo_tensorrt_converter(target, supports_dynamic_shapes=True)
    def convert(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
        return activation.smooth(ctx, name, kind, *bind(target, args, kwargs))

    convert.__doc__ = str(target._schema)
    return convert


CONVERTERS = [_smooth(target, kind) for target, kind in SMOOTH.items()]


@dynamo_tensorrt_converter(aten.relu.default, supports_dynamic_shapes=True)
def relu(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """relu(Tensor self) -> Tensor"""
    return activation.relu(ctx, name, *bind(target, args, kwargs))


@dynamo_tensorrt_converter(aten.gelu.default, supports_dynamic_shapes=True)
def gelu(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """gelu(Tensor self, *, str approximate='none') -> Tensor"""
    return activation.gelu(ctx, name, *bind(target, args, kwargs))


@dynamo_tensorrt_converter(aten.silu.default, supports_dynamic_shapes=True)
def silu(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """silu(Tensor self) -> Tensor"""
    return activation.silu(ctx, name, *bind(target, args, kwargs))
