"""Add normalization by TensorRT's layer, computed in float32 for every input dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, Value, block
from pipeline.impl.reduce import reduce
from pipeline.impl.shape import size_product
from pipeline.trt import CAPABILITIES

Shape = Sequence[int]


@block
def normalize(
    net: Net, x: ITensor, axes: Sequence[int], weight: Value | None, bias: Value | None, shape: Shape, eps: float
) -> ITensor:
    """Return ``(x - mean) / sqrt(var + eps) * weight + bias`` over axes; weight and bias are reshaped to ``shape``."""
    wide = base.cast(net, x, torch.float32)
    scale = _reshape_coefficient(net, weight, shape, 1.0)
    shift = _reshape_coefficient(net, bias, shape, 0.0)
    if all(base.dims(wide)[axis] == 1 for axis in axes):
        wide = base.elementwise(net, "SUB", wide, wide)  # x is its own mean; the layer requires two elements
        for operation, value in (("PROD", scale), ("SUM", shift)):
            wide = base.elementwise(net, operation, wide, value)
        return base.cast(net, wide, base.dtype_of(x))
    kind = "normalization_v2" if CAPABILITIES.normalization_v2 else "normalization"
    layer = net.add(kind, wide, scale, shift, base.axes_mask(axes, base.rank(x)))
    layer.epsilon = eps
    return base.cast(net, layer.get_output(0), base.dtype_of(x))


def _reshape_coefficient(net: Net, value: Value | None, shape: Shape, default: float) -> ITensor:
    """Return a weight or bias in float32, reshaped so that it broadcasts; ``default`` if it is None."""
    if value is None:
        return base.constant(net, torch.full(tuple(shape), default))
    if not isinstance(value, torch.Tensor):
        return base.reshape(net, base.cast(net, value, torch.float32), shape)
    layer = net.add("constant", tuple(shape), net.ctx.trt_weights(value))
    return base.cast(net, layer.get_output(0), torch.float32)


@block
def layer_norm(net: Net, x: ITensor, dim_count: int, weight: Value | None, bias: Value | None, eps: float) -> ITensor:
    """Normalize over the last ``dim_count`` dims, with a weight for each of their elements."""
    rank = base.rank(x)
    axes = range(rank - dim_count, rank)
    given = next((v for v in (weight, bias) if v is not None), None)
    last = (1,) * dim_count if given is None else base.dims(given)
    return normalize(net, x, axes, weight, bias, (*(1,) * (rank - dim_count), *last), eps)


@block
def channel_norm(
    net: Net, x: ITensor, axes: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> ITensor:
    """Normalize over ``axes``, with a weight and a bias for each channel (dim 1)."""
    shape = [1] * base.rank(x)
    shape[1] = base.dims(x)[1]
    return normalize(net, x, axes, weight, bias, shape, eps)


@block
def group_norm(net: Net, x: ITensor, groups: int, weight: Value | None, bias: Value | None, eps: float) -> ITensor:
    """Normalize over the channels of each group and all dims after the channels, with a weight for each channel."""
    channels, rank = base.dims(x)[1], base.rank(x)
    if rank == 2:
        result = group_norm(net, base.unsqueeze(net, x, [2]), groups, weight, bias, eps)
        return base.squeeze(net, result, [2])
    if groups == 1:
        return channel_norm(net, x, range(1, rank), weight, bias, eps)
    if groups == channels:
        return channel_norm(net, x, range(2, rank), weight, bias, eps)
    sizes = base.sizes(net, x)
    flat = split_groups(net, base.cast(net, x, torch.float32), groups)
    result = base.reshape(net, normalize(net, flat, [2], None, None, [1, 1, 1], eps), sizes)
    shape = (1, channels, *(1,) * (rank - 2))
    for operation, value in (("PROD", weight), ("SUM", bias)):
        if value is not None:
            result = base.elementwise(net, operation, result, _reshape_coefficient(net, value, shape, 0.0))
    return base.cast(net, result, base.dtype_of(x))


@block
def statistics(net: Net, x: ITensor, axes: Sequence[int], eps: float, *, keepdim: bool) -> tuple[ITensor, ITensor]:
    """Return the mean over axes and ``1 / sqrt(var + eps)``, both in float32."""
    wide = base.cast(net, x, torch.float32)
    mean = _mean(net, wide, axes)
    centred = base.elementwise(net, "SUB", wide, mean)
    variance = _mean(net, base.elementwise(net, "PROD", centred, centred), axes)
    gone = () if keepdim else tuple(axes)
    rstd = base.unary(net, "RECIP", _reciprocal_root(net, variance, eps))
    return base.squeeze(net, mean, gone), base.squeeze(net, rstd, gone)


@block
def split_groups(net: Net, x: ITensor, groups: int) -> ITensor:
    """Reshape a tensor to [N, groups, remaining elements]; sizes are not inferred by -1 if N may be 0."""
    rows, channels, *others = base.known_sizes(net, x)
    rest = -1 if None in others else size_product([channels // groups, *others])
    return base.reshape(net, x, [base.size(net, x, 0) if rows is None else rows, groups, rest])


@block
def rms_norm(net: Net, x: ITensor, dim_count: int, weight: Value | None, eps: float) -> ITensor:
    """Return ``x / sqrt(mean(x²) + eps) * weight``, with the mean over the last ``dim_count`` dims; round once."""
    rank = base.rank(x)
    wide = base.cast(net, x, torch.float32)
    square = base.elementwise(net, "PROD", wide, wide)
    root = _reciprocal_root(net, _mean(net, square, range(rank - dim_count, rank)), eps)
    result = base.elementwise(net, "DIV", wide, root)
    if weight is not None:
        factor = base.tensor(net, weight, base.dtype_of(result), rank=rank)
        result = base.elementwise(net, "PROD", result, factor)
    return base.cast(net, result, base.dtype_of(x))


def _mean(net: Net, x: ITensor, axes: Sequence[int]) -> ITensor:
    return reduce(net, "AVG", x, axes, True)


def _reciprocal_root(net: Net, variance: ITensor, eps: float) -> ITensor:
    small = base.constant(net, eps, torch.float32, rank=base.rank(variance))
    return base.unary(net, "SQRT", base.elementwise(net, "SUM", variance, small))
