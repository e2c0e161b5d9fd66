"""Convert reductions along dims, and cumulative operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from pipeline.aten.arguments import argument
from pipeline.converters.binding import CompilationSettings, Rejection, aten, cast_to_result, converts, fake_result
from pipeline.impl import base, reduce
from pipeline.impl.base import ITensor, Net, Value

Dims = Sequence[int] | int | None
Test = Callable[[Net, Value, Dims, bool], ITensor]

TOTALS = {
    **dict.fromkeys((aten.sum.default, aten.sum.dim_IntList), "SUM"),
    **dict.fromkeys((aten.mean.default, aten.mean.dim), "AVG"),
    **dict.fromkeys((aten.prod.default, aten.prod.dim_int), "PROD"),
}
EXTREMA = {
    **dict.fromkeys((aten.amax.default, aten.max.default), "MAX"),
    **dict.fromkeys((aten.amin.default, aten.min.default), "MIN"),
}
TESTS = {
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), reduce.any_nonzero),
    **dict.fromkeys((aten.all.default, aten.all.dim, aten.all.dims), reduce.all_nonzero),
}
DEVIATIONS = {
    aten.var.correction: ("variance",),
    aten.var.dim: ("variance",),
    aten.var_mean.correction: ("variance", "mean"),
    aten.std.correction: ("deviation",),
    aten.std.dim: ("deviation",),
    aten.std_mean.correction: ("deviation", "mean"),
}


@converts(TOTALS)
def sum_mean_or_prod(net: Net, operation: str, input: Value, dim: Dims = None, keepdim: bool = False) -> ITensor:
    """sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, …) -> Tensor; also mean and prod (``operation``)"""
    return cast_to_result(net, reduce.total(net, operation, input, dim, keepdim, fake_result(net).dtype))


@converts(EXTREMA)
def amax_or_amin(net: Net, operation: str, input: Value, dim: Dims = None, keepdim: bool = False) -> ITensor:
    """amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor; also amin (``operation``)"""
    return reduce.extremum(net, operation, input, dim, keepdim)


@converts(TESTS)
def any_or_all(net: Net, block: Test, input: Value, dim: Dims = None, keepdim: bool = False) -> ITensor:
    """any.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor; also all (``block`` adds the layers)"""
    if dim == []:  # ATen reduces no dim here, all dims in sum and amax
        return cast_to_result(net, base.tensor(net, input, torch.bool))
    return cast_to_result(net, block(net, input, dim, keepdim))


@converts(DEVIATIONS)
def var_or_std(
    net: Net,
    result_names: Sequence[str],
    input: Value,
    dim: Dims = None,
    unbiased: bool = True,
    correction: float | None = None,
    keepdim: bool = False,
) -> ITensor | tuple[ITensor, ...]:
    """var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor;
    var.dim(Tensor self, int[1]? dim, …) -> Tensor; also std_mean (``result_names``: ("deviation", "mean")), std …"""
    correction = float(unbiased) if correction is None else correction
    variance, mean = reduce.variance_and_mean(net, input, dim, correction, keepdim)
    spread = base.unary(net, "SQRT", variance) if "deviation" in result_names else variance
    made = [cast_to_result(net, r) for r in (spread, mean)[: len(result_names)]]
    return made[0] if len(made) == 1 else tuple(made)


@converts(aten.linalg_vector_norm.default)
def linalg_vector_norm(net: Net, input: Value, ord: float, dim: Sequence[int] | None, keepdim: bool) -> ITensor:
    """linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, …) -> Tensor"""
    return cast_to_result(net, reduce.vector_norm(net, input, ord, dim, keepdim))


@converts({aten.cumsum.default: reduce.cumulative_sum, aten.cumprod.default: reduce.cumulative_product})
def cumsum_or_cumprod(net: Net, cumulative_block: Callable[..., ITensor], input: Value, dim: int) -> ITensor:
    """cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor; also cumprod (by ``cumulative_block``)"""
    return cast_to_result(net, cumulative_block(net, input, dim, fake_result(net).dtype))


@converts({aten.cummax.default: True, aten.cummin.default: False})
def cummax_or_cummin(net: Net, largest: bool, input: Value, dim: int) -> tuple[ITensor, ITensor]:
    """cummax(Tensor self, int dim) -> (Tensor values, Tensor indices); cummin if ``largest`` is False"""
    return reduce.cumulative_extremum(net, largest, input, dim)


def check_range(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """histc's ``min`` must be below ``max``: equal ones mean the data's range, so bins would change with each call."""
    low, high = argument(node, "min"), argument(node, "max")
    if not argument(node, "self").meta["val"].is_floating_point():
        low, high = int(low), int(high)
    return low < high or Rejection("min equals max, so the bins span the data's range", "pass a min below max")


@converts(aten.histc.default, validator=check_range)
def histc(net: Net, input: Value, bins: int, min: float, max: float) -> ITensor:
    """histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor"""
    return cast_to_result(net, reduce.histogram(net, input, bins, min, max))
