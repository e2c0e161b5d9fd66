"""Add convolutions and transposed convolutions over one, two or three spatial dims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pipeline.impl import barriers, base
from pipeline.impl.base import ITensor, Net, Value, block
from pipeline.impl.pool_windows import insert_zeros, pad_border
from pipeline.quirks import is_avoided
from pipeline.trt import CAPABILITIES

Dims = Sequence[int]
LONGEST, FURTHEST = 32, 16
"""The largest kernel and stride for which convolutions run in bfloat16: on an H200, TensorRT-RTX 1.4 rejected kernel 63
with stride 32 and 127 with 64, and built 10 with 5."""
Layer = Callable[[ITensor, Value, Value | None, bool], ITensor]
"""Adds a layer for an input, a kernel and a bias or None; the last argument: whether a spatial dim was added."""


@block
def convolution(
    net: Net, x: Value, weight: Value, bias: Value | None, *, stride: Dims, padding: Dims, dilation: Dims, groups: int
) -> ITensor:
    """Convolve ``x`` [N, C, …] with ``weight`` [maps, C / groups, …]; a single number applies to all spatial dims."""

    def layer(x: ITensor, weight: Value, bias: Value | None, is_1d: bool) -> ITensor:
        conv = _add_conv_layer(net, "convolution", x, weight, bias, base.dims(weight)[0], is_1d)
        _set_attributes(conv, stride, padding, padding, dilation, groups, is_1d)
        return conv.get_output(0)

    depthwise = groups > 1 and base.dims(weight)[1] == 1
    long = max(base.dims(weight)[2:]) > LONGEST or max(stride) > FURTHEST
    missing = (depthwise or long) and is_avoided("bfloat16-convolutions")
    return (_compute_in_float32 if missing else _add_required_dims)(net, x, weight, bias, layer)


@block
def deconvolution(
    net: Net,
    x: Value,
    weight: Value,
    bias: Value | None,
    *,
    stride: Dims,
    padding: Dims,
    dilation: Dims,
    output_padding: Dims,
    groups: int,
) -> ITensor:
    """Add a transposed convolution; ``weight`` is [C, maps / groups, …]; ``output_padding`` lengthens the result."""
    rank = base.rank(weight) - 2
    steps, cut, more, dilations = (_repeat_per_dim(v, rank) for v in (stride, padding, output_padding, dilation))

    def layer(x: ITensor, weight: Value, bias: Value | None, is_1d: bool) -> ITensor:
        strides, post = steps, [c - m for c, m in zip(cut, more, strict=True)]
        varies = groups > 1 and -1 in base.dims(x) and is_avoided("grouped-deconvolutions")
        missing = max(dilations) > 1 and not CAPABILITIES.strided_dilated_deconvolution
        if max(strides) > 1 and (varies or missing):
            spacing = [1] * is_1d + strides
            x, post = insert_zeros(net, x, spacing), [p + s - 1 for p, s in zip(post, strides, strict=True)]
            strides = [1] * rank
        extra = [max(0, -(p // s)) for p, s in zip(post, strides, strict=True)]
        x = pad_border(net, x, [0] * (rank + is_1d), [0] * is_1d + extra)
        post = [p + e * s for p, e, s in zip(post, extra, strides, strict=True)]
        conv = _add_conv_layer(net, "deconvolution", x, weight, bias, base.dims(weight)[1] * groups, is_1d)
        _set_attributes(conv, strides, cut, post, dilations, groups, is_1d)
        return conv.get_output(0)

    # TensorRT-RTX 1.4 to 1.7 has no bfloat16 deconvolution ("could not infer output types")
    return _compute_in_float32(net, x, weight, bias, layer)


def _compute_in_float32(net: Net, x: Value, weight: Value, bias: Value | None, add_layer: Layer) -> ITensor:
    """Add a layer; if ``x`` is bfloat16, which TensorRT lacks, in float32, rounded in the same kernel. A barrier
    follows, since RTX 1.6.1 is wrong if that kernel also casts its result back to float32
    (`rounded-deconvolutions`)."""
    if base.dtype_of(x) != torch.bfloat16:
        return _add_required_dims(net, x, weight, bias, add_layer)

    def rounded(x: ITensor, weight: Value, bias: Value | None, is_1d: bool) -> ITensor:
        result = base.cast(net, add_layer(x, weight, bias, is_1d), torch.bfloat16)
        return barriers.flat_barrier(net, result, "rounded-deconvolutions")

    x, weight = (base.tensor(net, v, torch.float32) for v in (x, weight))
    bias = None if bias is None else base.tensor(net, bias, torch.float32)
    return _add_required_dims(net, x, weight, bias, rounded)


def _add_required_dims(net: Net, x: Value, weight: Value, bias: Value | None, add_layer: Layer) -> ITensor:
    """Add a layer with the batch dim and second spatial dim that TensorRT requires, and remove them from its result."""
    rank = base.rank(weight)
    is_1d = rank == 3
    x = base.tensor(net, x)
    added = [0] * (base.rank(x) < rank) + [2] * is_1d
    x = base.unsqueeze(net, x, added)
    if is_1d and not isinstance(weight, torch.Tensor):
        weight = base.unsqueeze(net, weight, [2])
    output = add_layer(x, weight, bias, is_1d)
    result = base.squeeze(net, output, added)
    if added:
        net.ctx.squeezed[id(result)] = output, added, result  # for `base.cast`
    return result


def _add_conv_layer(net: Net, kind: str, x: ITensor, weight: Value, bias: Value | None, maps: int, is_1d: bool) -> Any:
    """Add a convolution layer. A constant kernel or bias becomes a weight of the layer, a computed one an input."""
    size = tuple(base.dims(weight)[2:])
    fixed = isinstance(weight, torch.Tensor)
    size = (1, *size) if is_1d and fixed else size
    none = net.ctx.empty_weights(base.dtype_of(weight))
    bias_weights = net.ctx.trt_weights(bias) if isinstance(bias, torch.Tensor) else none
    layer = net.add(f"{kind}_nd", x, maps, size, net.ctx.trt_weights(weight) if fixed else none, bias_weights)
    if not fixed:
        layer.set_input(1, weight)
    if bias is not None and not isinstance(bias, torch.Tensor):
        layer.set_input(2, bias)
    return layer


def _repeat_per_dim(value: Dims, rank: int) -> list[int]:
    return list(value) * (rank if len(value) == 1 else 1)


def _set_attributes(layer: Any, stride: Dims, pre: Dims, post: Dims, dilation: Dims, groups: int, is_1d: bool) -> None:
    """Set groups, stride, paddings and dilation of a convolution layer; ``is_1d``: a first spatial dim was added."""
    rank = len(layer.kernel_size_nd) - is_1d
    layer.num_groups = groups
    layer.stride_nd = (1,) * is_1d + tuple(_repeat_per_dim(stride, rank))
    layer.pre_padding = (0,) * is_1d + tuple(_repeat_per_dim(pre, rank))
    layer.post_padding = (0,) * is_1d + tuple(_repeat_per_dim(post, rank))
    layer.dilation_nd = (1,) * is_1d + tuple(_repeat_per_dim(dilation, rank))
