"""Reductions along dims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pipeline.converters.arguments import bind
from pipeline.converters.context import ConversionContext
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.impl import base, reduce

aten = torch.ops.aten

Args = Sequence[Any]
Kwargs = Mapping[str, Any]


def _result_dtype(ctx: ConversionContext) -> torch.dtype:
    """The dtype of the node's (first) result."""
    assert ctx.node is not None
    value = ctx.node.meta["val"]
    dtype: torch.dtype = value.dtype if isinstance(value, torch.Tensor) else value[0].dtype
    return dtype


def named(target: Any, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    """The arguments by their names."""
    return dict(zip((a.name for a in target._schema.arguments), bind(target, args, kwargs), strict=True))


TOTALS = {
    aten.sum.default: "SUM",
    aten.sum.dim_IntList: "SUM",
    aten.mean.default: "AVG",
    aten.mean.dim: "AVG",
    aten.prod.default: "PROD",
    aten.prod.dim_int: "PROD",
}
EXTREMA = {
    aten.amax.default: "MAX",
    aten.amin.default: "MIN",
    aten.max.default: "MAX",
    aten.min.default: "MIN",
}
TESTS = {
    aten.any.default: reduce.any_of,
    aten.any.dim: reduce.any_of,
    aten.any.dims: reduce.any_of,
    aten.all.default: reduce.all_of,
    aten.all.dim: reduce.all_of,
    aten.all.dims: reduce.all_of,
}


def _total(target: Any, operation: str) -> Callable[..., Any]:
    @dynamo_tensorrt_converter(target, supports_dynamic_shapes=True)
    def convert(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
        a = named(target, args, kwargs)
        dim, keepdim = a.get("dim"), a.get("keepdim", False)
        return reduce.total(ctx, name, operation, a["self"], dim, keepdim, _result_dtype(ctx))

    convert.__doc__ = str(target._schema)
    return convert


def _extremum(target: Any, operation: str) -> Callable[..., Any]:
    @dynamo_tensorrt_converter(target, supports_dynamic_shapes=True)
    def convert(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
        a = named(target, args, kwargs)
        return reduce.extremum(ctx, name, operation, a["self"], a.get("dim"), a.get("keepdim", False))

    convert.__doc__ = str(target._schema)
    return convert


def _test(target: Any, implementation: Callable[..., Any]) -> Callable[..., Any]:
    @dynamo_tensorrt_converter(target, supports_dynamic_shapes=True)
    def convert(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
        a = named(target, args, kwargs)
        result = implementation(ctx, name, a["self"], a.get("dim"), a.get("keepdim", False))
        return base.cast(ctx, name, result, _result_dtype(ctx))

    convert.__doc__ = str(target._schema)
    return convert


CONVERTERS = [
    *(_total(target, operation) for target, operation in TOTALS.items()),
    *(_extremum(target, operation) for target, operation in EXTREMA.items()),
    *(_test(target, implementation) for target, implementation in TESTS.items()),
]


@dynamo_tensorrt_converter(aten.cumsum.default, supports_dynamic_shapes=True)
def cumsum(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor"""
    return reduce.cumulative_sum(ctx, name, args[0], args[1], _result_dtype(ctx))
