"""Normalisation by TensorRT's layer, in float32 whatever the input is: statistics of halves would lose too much."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.network.context import ConversionContext
from pipeline.trt import CAPABILITIES, trt

Shape = Sequence[int]


def normalize(
    ctx: ConversionContext,
    name: str,
    x: ITensor,
    axes: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    shape: Shape,
    eps: float,
    *,
    groups: int = 1,
) -> ITensor:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over axes; weight and bias have the given shape, or are None."""
    wide = base.cast(ctx, name, x, torch.float32)
    scale = _coefficient(ctx, name, weight, shape, 1.0)
    shift = _coefficient(ctx, name, bias, shape, 0.0)
    if groups == 1 and all(base.dims(wide)[axis] == 1 for axis in axes):
        wide = base.elementwise(ctx, name, "SUB", wide, wide)  # its own mean: the layer takes two elements and more
        for operation, value in (("PROD", scale), ("SUM", shift)):
            wide = base.elementwise(ctx, name, operation, wide, value)
        return base.cast(ctx, name, wide, base.dtype_of(x))
    kind = "normalization_v2" if CAPABILITIES.normalization_v2 else "normalization"
    layer = ctx.add(name, kind, wide, scale, shift, base.axes_mask(axes, base.rank(x)))
    layer.epsilon = eps
    layer.num_groups = groups
    return base.cast(ctx, name, layer.get_output(0), base.dtype_of(x))


def _coefficient(ctx: ConversionContext, name: str, value: Value | None, shape: Shape, default: float) -> ITensor:
    """A weight in float32, in a shape that broadcasts."""
    if value is None:
        return base.constant(ctx, name, torch.full(tuple(shape), default))
    if not isinstance(value, torch.Tensor):
        return base.reshape(ctx, name, base.cast(ctx, name, value, torch.float32), shape)
    layer = ctx.add(name, "constant", tuple(shape), ctx.trt_weights(value))
    return base.cast(ctx, name, layer.get_output(0), torch.float32)


def layer_norm(
    ctx: ConversionContext,
    name: str,
    x: ITensor,
    normalized: int,
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> ITensor:
    """Over the last ``normalized`` dims, each element of which has a weight of its own."""
    rank = base.rank(x)
    axes = range(rank - normalized, rank)
    given = next((v for v in (weight, bias) if v is not None), None)
    last = (1,) * normalized if given is None else base.dims(given)
    return normalize(ctx, name, x, axes, weight, bias, (*(1,) * (rank - normalized), *last), eps)


def channel_norm(
    ctx: ConversionContext,
    name: str,
    x: ITensor,
    axes: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    eps: float,
    *,
    groups: int = 1,
) -> ITensor:
    """Over axes, with a weight for each channel (dim 1)."""
    shape = [1] * base.rank(x)
    shape[1] = base.dims(x)[1]
    return normalize(ctx, name, x, axes, weight, bias, shape, eps, groups=groups)


def group_norm(
    ctx: ConversionContext, name: str, x: ITensor, groups: int, weight: Value | None, bias: Value | None, eps: float
) -> ITensor:
    """Over the channels of each group and all dims after them, with a weight for each channel."""
    channels, rank = base.dims(x)[1], base.rank(x)
    if rank == 2:
        result = group_norm(ctx, name, base.unsqueeze(ctx, name, x, [2]), groups, weight, bias, eps)
        return base.squeeze(ctx, name, result, [2])
    if groups == 1:
        return channel_norm(ctx, name, x, range(1, rank), weight, bias, eps)
    if groups == channels:
        return channel_norm(ctx, name, x, range(2, rank), weight, bias, eps)
    if CAPABILITIES.normalization_v2:
        return channel_norm(ctx, name, x, range(2, rank), weight, bias, eps, groups=groups)
    return _group_norm_v1(ctx, name, x, groups, weight, bias, eps)


def _group_norm_v1(
    ctx: ConversionContext, name: str, x: ITensor, groups: int, weight: Value | None, bias: Value | None, eps: float
) -> ITensor:
    """Before TensorRT 10.15 the layer has a weight for each group only."""
    sizes = base.sizes(ctx, name, x)
    wide = base.cast(ctx, name, x, torch.float32)
    flat = by_group(ctx, name, wide, groups)
    result = base.reshape(ctx, name, normalize(ctx, name, flat, [2], None, None, [1, 1, 1], eps), sizes)
    shape = (1, base.dims(x)[1], *(1,) * (len(sizes) - 2))
    for operation, value in (("PROD", weight), ("SUM", bias)):
        if value is not None:
            result = base.elementwise(ctx, name, operation, result, _coefficient(ctx, name, value, shape, 0.0))
    return base.cast(ctx, name, result, base.dtype_of(x))


def statistics(
    ctx: ConversionContext, name: str, x: ITensor, axes: Sequence[int], eps: float, *, keepdim: bool
) -> tuple[ITensor, ITensor]:
    """The mean, and one over the square root of the variance with eps, in float32."""
    wide = base.cast(ctx, name, x, torch.float32)
    mean = _mean(ctx, name, wide, axes)
    centred = base.elementwise(ctx, name, "SUB", wide, mean)
    variance = _mean(ctx, name, base.elementwise(ctx, name, "PROD", centred, centred), axes)
    gone = () if keepdim else tuple(axes)
    rstd = base.unary(ctx, name, "RECIP", _root(ctx, name, variance, eps))
    return base.squeeze(ctx, name, mean, gone), base.squeeze(ctx, name, rstd, gone)


def by_group(ctx: ConversionContext, name: str, x: ITensor, groups: int) -> ITensor:
    """``x`` as [N, groups, all the rest]."""
    return base.reshape(ctx, name, x, [base.size(ctx, name, x, 0), groups, -1])


def rms_norm(
    ctx: ConversionContext, name: str, x: ITensor, normalized: int, weight: Value | None, eps: float
) -> ITensor:
    """``x / sqrt(mean(x²) + eps) * weight`` over the last dims."""
    rank = base.rank(x)
    wide = base.cast(ctx, name, x, torch.float32)
    square = base.elementwise(ctx, name, "PROD", wide, wide)
    root = _root(ctx, name, _mean(ctx, name, square, range(rank - normalized, rank)), eps)
    result = base.elementwise(ctx, name, "DIV", wide, root)
    if weight is not None:
        factor = base.tensor(ctx, name, weight, torch.float32, rank=rank)
        result = base.elementwise(ctx, name, "PROD", result, factor)
    return base.cast(ctx, name, result, base.dtype_of(x))


def _mean(ctx: ConversionContext, name: str, x: ITensor, axes: Sequence[int]) -> ITensor:
    mask = base.axes_mask(axes, base.rank(x))
    return ctx.add(name, "reduce", x, trt.ReduceOperation.AVG, mask, True).get_output(0)


def _root(ctx: ConversionContext, name: str, variance: ITensor, eps: float) -> ITensor:
    small = base.constant(ctx, name, eps, torch.float32, rank=base.rank(variance))
    return base.unary(ctx, name, "SQRT", base.elementwise(ctx, name, "SUM", variance, small))
