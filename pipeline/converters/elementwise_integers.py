"""Bitwise operators and powers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pipeline.converters.arguments import bind
from pipeline.converters.context import ConversionContext
from pipeline.converters.declare import Rejection, dynamo_tensorrt_converter
from pipeline.impl import elementwise_bits, elementwise_power
from pipeline.settings import CompilationSettings

aten = torch.ops.aten

Args = Sequence[Any]
Kwargs = Mapping[str, Any]

BITWISE = {
    aten.bitwise_and.Tensor: "AND",
    aten.bitwise_and.Scalar: "AND",
    aten.bitwise_and.Scalar_Tensor: "AND",
    aten.bitwise_or.Tensor: "OR",
    aten.bitwise_or.Scalar: "OR",
    aten.bitwise_or.Scalar_Tensor: "OR",
    aten.bitwise_xor.Tensor: "XOR",
    aten.bitwise_xor.Scalar: "XOR",
    aten.bitwise_xor.Scalar_Tensor: "XOR",
}


def rank_below_8(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Integers are taken apart into digits along one more dim, and 8 is TensorRT's limit."""
    value = node.meta["val"]
    if value.dtype == torch.bool or value.dim() < 8:
        return True
    return Rejection(f"the digits of integers of rank {value.dim()} need one dim more than TensorRT's 8")


def _bitwise(target: Any, operation: str) -> Callable[..., Any]:
    @dynamo_tensorrt_converter(target, capability_validator=rank_below_8, supports_dynamic_shapes=True)
    def convert(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
        return elementwise_bits.bitwise(ctx, name, operation, *bind(target, args, kwargs))

    convert.__doc__ = str(target._schema)
    return convert


CONVERTERS = [_bitwise(target, operation) for target, operation in BITWISE.items()]


@dynamo_tensorrt_converter(aten.bitwise_not.default, supports_dynamic_shapes=True)
def bitwise_not(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """bitwise_not(Tensor self) -> Tensor"""
    return elementwise_bits.bitwise_not(ctx, name, *bind(target, args, kwargs))


@dynamo_tensorrt_converter(aten.pow.Tensor_Scalar, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.pow.Tensor_Tensor, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.pow.Scalar, supports_dynamic_shapes=True)
def pow(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """pow(Tensor self, Scalar exponent) -> Tensor"""
    return elementwise_power.power(ctx, name, *bind(target, args, kwargs))
