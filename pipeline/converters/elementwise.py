"""Elementwise operators of two tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pipeline.converters.context import ConversionContext
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.impl.elementwise import binary

aten = torch.ops.aten

BINARY = {aten.mul.Tensor: "PROD", aten.mul.Scalar: "PROD", aten.maximum.default: "MAX", aten.minimum.default: "MIN"}


def _binary(target: Any, operation: str) -> Callable[..., Any]:
    @dynamo_tensorrt_converter(target, supports_dynamic_shapes=True)
    def convert(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
        return binary(ctx, name, operation, args[0], args[1])

    return convert


CONVERTERS = [_binary(target, operation) for target, operation in BINARY.items()]


@dynamo_tensorrt_converter(aten.add.Tensor, supports_dynamic_shapes=True)
@dynamo_tensorrt_converter(aten.add.Scalar, supports_dynamic_shapes=True)
def add(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """add(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"""
    return binary(ctx, name, "SUM", args[0], args[1])
