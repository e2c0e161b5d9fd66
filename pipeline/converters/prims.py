"""Primitives that torch's decompositions leave behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.aten.arguments import bind
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.converters.results import as_result, result_of
from pipeline.impl import base, elementwise_division, reduce
from pipeline.network.context import ConversionContext

prims = torch.ops.prims

Args = Sequence[Any]
Kwargs = Mapping[str, Any]


@dynamo_tensorrt_converter(prims.div.default, supports_dynamic_shapes=True)
def div(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """prims::div(Tensor self, Tensor other) -> Tensor. Of integers, toward zero."""
    rounding = None if result_of(ctx).dtype.is_floating_point else "trunc"
    return as_result(ctx, name, elementwise_division.divide(ctx, name, args[0], args[1], rounding))


@dynamo_tensorrt_converter(prims.sum.default, supports_dynamic_shapes=True)
def sum(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """prims::sum(Tensor inp, int[]? dims, *, ScalarType? output_dtype=None) -> Tensor"""
    inp, dims, *_ = bind(target, args, kwargs)
    if dims == []:  # here nothing is reduced, and everything in aten.sum
        return as_result(ctx, name, base.tensor(ctx, name, inp))
    return as_result(ctx, name, reduce.total(ctx, name, "SUM", inp, dims, False, result_of(ctx).dtype))
