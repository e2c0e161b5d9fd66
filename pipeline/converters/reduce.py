"""Reductions along dims, and running sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pipeline.aten.arguments import argument, bind
from pipeline.converters.declare import Rejection, dynamo_tensorrt_converter
from pipeline.converters.results import as_result, result_of
from pipeline.impl import base, reduce, reduce_histogram, reduce_moments, reduce_scan
from pipeline.network.context import ConversionContext
from pipeline.settings import CompilationSettings

aten = torch.ops.aten

Args = Sequence[Any]
Kwargs = Mapping[str, Any]

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
DEVIATIONS = {
    aten.var.correction: ("variance",),
    aten.var.dim: ("variance",),
    aten.var_mean.correction: ("variance", "mean"),
    aten.std.correction: ("deviation",),
    aten.std.dim: ("deviation",),
    aten.std_mean.correction: ("deviation", "mean"),
}


def named(target: Any, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    """The arguments by their names; a dim and keepdim that are not among them are what they are by default."""
    names = [a.name for a in target._schema.arguments]
    return {"dim": None, "keepdim": False} | dict(zip(names, bind(target, args, kwargs), strict=True))


def _total(target: Any, operation: str) -> Callable[..., Any]:
    @dynamo_tensorrt_converter(target, supports_dynamic_shapes=True)
    def convert(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
        a, dtype = named(target, args, kwargs), result_of(ctx).dtype
        result = reduce.total(ctx, name, operation, a["self"], a["dim"], a["keepdim"], dtype)
        return as_result(ctx, name, result)

    convert.__doc__ = str(target._schema)
    return convert


def _extremum(target: Any, operation: str) -> Callable[..., Any]:
    @dynamo_tensorrt_converter(target, supports_dynamic_shapes=True)
    def convert(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
        a = named(target, args, kwargs)
        return reduce.extremum(ctx, name, operation, a["self"], a["dim"], a["keepdim"])

    convert.__doc__ = str(target._schema)
    return convert


def _test(target: Any, implementation: Callable[..., Any]) -> Callable[..., Any]:
    @dynamo_tensorrt_converter(target, supports_dynamic_shapes=True)
    def convert(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
        a = named(target, args, kwargs)
        if a["dim"] == []:  # here ATen reduces nothing, and everything in sum and amax
            return as_result(ctx, name, base.tensor(ctx, name, a["self"], torch.bool))
        return as_result(ctx, name, implementation(ctx, name, a["self"], a["dim"], a["keepdim"]))

    convert.__doc__ = str(target._schema)
    return convert


def _deviation(target: Any, results: tuple[str, ...]) -> Callable[..., Any]:
    @dynamo_tensorrt_converter(target, supports_dynamic_shapes=True)
    def convert(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
        a = named(target, args, kwargs)
        correction = float(a["unbiased"]) if "unbiased" in a else 1.0 if a["correction"] is None else a["correction"]
        variance, mean = reduce_moments.variance(ctx, name, a["self"], a["dim"], correction, a["keepdim"])
        deviation = base.unary(ctx, name, "SQRT", variance) if "deviation" in results else variance
        made = [as_result(ctx, name, r) for r in (deviation, mean)[: len(results)]]
        return made[0] if len(made) == 1 else tuple(made)

    convert.__doc__ = str(target._schema)
    return convert


CONVERTERS = [
    *(_total(target, operation) for target, operation in TOTALS.items()),
    *(_extremum(target, operation) for target, operation in EXTREMA.items()),
    *(_test(target, implementation) for target, implementation in TESTS.items()),
    *(_deviation(target, results) for target, results in DEVIATIONS.items()),
]


@dynamo_tensorrt_converter(aten.linalg_vector_norm.default, supports_dynamic_shapes=True)
def linalg_vector_norm(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, …) -> Tensor"""
    self, order, dim, keepdim, _ = bind(target, args, kwargs)
    return as_result(ctx, name, reduce_moments.vector_norm(ctx, name, self, order, dim, keepdim))


@dynamo_tensorrt_converter(aten.logsumexp.default, supports_dynamic_shapes=True)
def logsumexp(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor"""
    return as_result(ctx, name, reduce_moments.log_sum_exp(ctx, name, *bind(target, args, kwargs)))


@dynamo_tensorrt_converter(aten.cumsum.default, supports_dynamic_shapes=True)
def cumsum(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor"""
    dtype = result_of(ctx).dtype
    return as_result(ctx, name, reduce_scan.cumulative_sum(ctx, name, args[0], args[1], dtype))


@dynamo_tensorrt_converter(aten.cumprod.default, supports_dynamic_shapes=True)
def cumprod(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor"""
    dtype = result_of(ctx).dtype
    return as_result(ctx, name, reduce_scan.cumulative_product(ctx, name, args[0], args[1], dtype))


@dynamo_tensorrt_converter(aten.cummax.default, supports_dynamic_shapes=True)
def cummax(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)"""
    return reduce_scan.cumulative_extremum(ctx, name, True, *bind(target, args, kwargs))


@dynamo_tensorrt_converter(aten.cummin.default, supports_dynamic_shapes=True)
def cummin(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)"""
    return reduce_scan.cumulative_extremum(ctx, name, False, *bind(target, args, kwargs))


def known_range(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Bins over the range of the data itself would differ from call to call."""
    low, high = argument(node, "min"), argument(node, "max")
    if not argument(node, "self").meta["val"].is_floating_point():
        low, high = int(low), int(high)
    return low < high or Rejection("min and max are equal: the bins span the range of the data", "give min and max")


@dynamo_tensorrt_converter(aten.histc.default, capability_validator=known_range, supports_dynamic_shapes=True)
def histc(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor"""
    return as_result(ctx, name, reduce_histogram.histogram(ctx, name, *bind(target, args, kwargs)))
