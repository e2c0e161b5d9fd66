"""Compute TensorRT layers that combine elements along axes, in PyTorch."""

import math
from collections.abc import Callable, Mapping

import torch

from pipeline.network.description import Layer
from pipeline.runtime.reference.common import Maybe, Outputs, replace_nan, widen
from pipeline.trt import torch_dtype

Axes = tuple[int, ...]


def _min_or_max(x: torch.Tensor, axes: Axes, value_if_empty: float) -> torch.Tensor:
    """Return the minimum along axes (maximum if ``value_if_empty`` < 0); for integers, a dtype's bound replaces inf."""
    if all(x.shape[axis] for axis in axes):
        known = replace_nan(x, value_if_empty)
        return known.amin(axes, keepdim=True) if value_if_empty > 0 else known.amax(axes, keepdim=True)
    if not x.is_floating_point():
        value_if_empty = torch.iinfo(x.dtype).max if value_if_empty > 0 else torch.iinfo(x.dtype).min
    return x.new_full([1 if axis in axes else size for axis, size in enumerate(x.shape)], value_if_empty)


def _prod(x: torch.Tensor, axes: Axes) -> torch.Tensor:
    for axis in axes:
        x = x.prod(axis, keepdim=True, dtype=x.dtype)
    return x


def _sum(x: torch.Tensor, axes: Axes) -> torch.Tensor:
    return x.sum(axes, keepdim=True, dtype=x.dtype)


def _avg(x: torch.Tensor, axes: Axes) -> torch.Tensor:
    """Compute the mean along axes, rounded toward zero for integers; of no elements it is NaN, or 0 for integers."""
    if x.is_floating_point():
        return x.mean(axes, keepdim=True)
    count = max(x.numel() // max(_sum(x, axes).numel(), 1), 1)
    return torch.div(_sum(x, axes), count, rounding_mode="trunc")


REDUCE: Mapping[str, Callable[[torch.Tensor, Axes], torch.Tensor]] = {
    "SUM": _sum,
    "PROD": _prod,
    "MAX": lambda x, axes: _min_or_max(x, axes, -math.inf),
    "MIN": lambda x, axes: _min_or_max(x, axes, math.inf),
    "AVG": _avg,
}


def reduce(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    axes = layer.attribute("axes")
    result = REDUCE[layer.attribute("op")](widen(x), axes).to(x.dtype) if axes else x
    if layer.attribute("keep_dims"):
        return result
    return result.reshape([size for axis, size in enumerate(x.shape) if axis not in axes])


def top_k(layer: Layer, x: torch.Tensor, dynamic_k: Maybe = None) -> Outputs:
    """Return the top values along an axis and their indices; equal values are in order of index, and NaN sorts last."""
    x = replace_nan(x, -math.inf if layer.attribute("op") == "MAX" else math.inf)
    (axis,) = layer.attribute("axes")
    k = layer.attribute("k") if dynamic_k is None else int(dynamic_k)
    values, indices = torch.sort(x, dim=axis, descending=layer.attribute("op") == "MAX", stable=True)
    index_dtype = torch_dtype(layer.outputs[1].dtype)
    return values.narrow(axis, 0, k), indices.narrow(axis, 0, k).to(index_dtype)


def softmax(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    (axis,) = layer.attribute("axes")
    return torch.softmax(widen(x), axis).to(x.dtype)


def ragged_softmax(layer: Layer, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Apply softmax to the first `length` elements of each row; the rest of the row is 0."""
    inside = torch.arange(x.shape[-1]) < lengths.reshape(*x.shape[:-1], 1)
    scores = widen(x).masked_fill(~inside, float("-inf"))
    return torch.softmax(scores, -1).masked_fill(~inside, 0).to(x.dtype)


def cumulative(layer: Layer, x: torch.Tensor, axis: torch.Tensor) -> torch.Tensor:
    dim, values = int(axis), widen(x)
    if layer.attribute("reverse"):
        values = values.flip(dim)
    result = values.cumsum(dim, dtype=values.dtype)
    if layer.attribute("exclusive"):
        result = torch.cat([torch.zeros_like(values.narrow(dim, 0, min(1, x.shape[dim]))), result], dim)
        result = result.narrow(dim, 0, x.shape[dim])
    return (result.flip(dim) if layer.attribute("reverse") else result).to(x.dtype)


def non_zero(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    """Return the coordinates of nonzero elements: one column per element, one row per dim."""
    return x.nonzero().t().contiguous().to(torch_dtype(layer.outputs[0].dtype))


def normalization(layer: Layer, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Normalize groups of channels; version 1 of the layer has a scale and bias per group, version 2 per channel."""
    groups, axes = layer.attribute("num_groups"), layer.attribute("axes")
    values, scale, bias = widen(x), widen(scale), widen(bias)
    if groups != 1:
        values = values.reshape([x.shape[0], groups, math.prod(x.shape[1:]) // groups])
        axes = (2,)
    mean = values.mean(axes, keepdim=True)
    centred = values - mean
    variance = centred.square().mean(axes, keepdim=True)
    normal = (centred * torch.rsqrt(variance + layer.attribute("epsilon"))).reshape(x.shape)
    return (normal * _per_channel(scale, x) + _per_channel(bias, x)).to(x.dtype)


def _per_channel(coefficient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return a scale or bias for each channel of ``x``: one for a group of channels is repeated for each of them."""
    if x.dim() > 1 and 1 < coefficient.shape[1] < x.shape[1]:
        return coefficient.repeat_interleave(x.shape[1] // coefficient.shape[1], 1)
    return coefficient


def lrn(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    """Compute x / (k + alpha / window * sum of squares across channels) ** beta."""
    values, size = widen(x), layer.attribute("window_size")
    distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    near = (distance.abs() <= size // 2).to(values.dtype)
    total = torch.einsum("cd,nd...->nc...", near, values.square())
    bottom: torch.Tensor = layer.attribute("k") + layer.attribute("alpha") / size * total
    return (values * bottom.pow(-layer.attribute("beta"))).to(x.dtype)
