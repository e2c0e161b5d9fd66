"""Matrix products and linear layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pipeline.converters.arguments import bind
from pipeline.converters.context import ConversionContext
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.impl import matmul as impl

aten = torch.ops.aten

PRODUCTS = (aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default, aten.matmul.default)
SUMS = (aten.addmm.default, aten.baddbmm.default, aten.addmv.default)


def _product(target: Any) -> Callable[..., Any]:
    @dynamo_tensorrt_converter(target, supports_dynamic_shapes=True)
    def convert(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
        """matmul(Tensor self, Tensor other) -> Tensor"""
        return impl.matmul(ctx, name, *bind(target, args, kwargs))

    return convert


def _sum(target: Any) -> Callable[..., Any]:
    @dynamo_tensorrt_converter(target, supports_dynamic_shapes=True)
    def convert(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
        """addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
        return impl.plus_product(ctx, name, *bind(target, args, kwargs))

    return convert


CONVERTERS = [*map(_product, PRODUCTS), *map(_sum, SUMS)]


@dynamo_tensorrt_converter(aten.linear.default, supports_dynamic_shapes=True)
def linear(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"""
    return impl.linear(ctx, name, *bind(target, args, kwargs))
