"""Compute TensorRT layers with a sliding window, in PyTorch: convolution, deconvolution, pooling."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch.nn import functional

from pipeline.network.description import Layer
from pipeline.runtime.reference.common import LayerError, Maybe, replace_nan, widen

Pads = list[tuple[int, int]]


def _split_padding(total: int, mode: str) -> tuple[int, int]:
    """Split the padding of a dim in two; SAME_UPPER puts the odd element at the end, SAME_LOWER at the start."""
    small, large = total // 2, total - total // 2
    return (small, large) if mode == "SAME_UPPER" else (large, small)


def window_pads(layer: Layer, sizes: Sequence[int], extents: Sequence[int]) -> Pads:
    """Return each dim's padding (before, after) for input ``sizes`` and window ``extents``, by the padding mode."""
    mode, strides = layer.attribute("padding_mode"), layer.attribute("stride_nd")
    if mode.startswith("SAME"):
        needed = [
            max((-(-size // stride) - 1) * stride + extent - size, 0)
            for size, stride, extent in zip(sizes, strides, extents, strict=True)
        ]
        return [_split_padding(total, mode) for total in needed]
    pads = _declared_padding(layer)
    if mode == "EXPLICIT_ROUND_DOWN":
        return pads
    rest = [
        -(size + before + after - extent) % stride
        for size, (before, after), stride, extent in zip(sizes, pads, strides, extents, strict=True)
    ]
    return [(before, after + more) for (before, after), more in zip(pads, rest, strict=True)]


def pad(x: torch.Tensor, pads: Pads, value: float = 0.0) -> torch.Tensor:
    flat = [amount for pair in reversed(pads) for amount in pair]
    return functional.pad(x, flat, value=value) if any(flat) else x


def _kernel_and_bias(
    layer: Layer, x: torch.Tensor, kernel: Maybe, bias: Maybe, weights: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, Maybe]:
    """Return the kernel and the bias of a convolution; each comes from a layer input or from a flat weight."""
    if kernel is None:
        maps, groups = layer.attribute("num_output_maps"), layer.attribute("num_groups")
        first, second = (maps, x.shape[1] // groups) if layer.kind == "CONVOLUTION" else (x.shape[1], maps // groups)
        kernel = weights["kernel"].reshape([first, second, *layer.attribute("kernel_size_nd")])
    bias = weights.get("bias") if bias is None else bias
    return widen(kernel), None if bias is None else widen(bias).reshape(-1)


def _window_extents(sizes: Sequence[int], dilations: Sequence[int]) -> list[int]:
    return [dilation * (size - 1) + 1 for size, dilation in zip(sizes, dilations, strict=True)]


def _flatten_batch(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    """Flatten all dims before the channel dim: [..., channels, *window dims] to [batch, channels, *window dims]."""
    rank = len(layer.attribute("stride_nd")) + 1
    return x.reshape(math.prod(x.shape[:-rank]), *x.shape[-rank:])


def _restore_leading_dims(result: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    """Give a result the leading dims and the dtype of the input."""
    return result.reshape([*original.shape[: 1 - result.dim()], *result.shape[1:]]).to(original.dtype)


def convolution(
    layer: Layer, x: torch.Tensor, kernel: Maybe = None, bias: Maybe = None, /, **weights: torch.Tensor
) -> torch.Tensor:
    values = widen(_flatten_batch(layer, x))
    kernel, bias = _kernel_and_bias(layer, values, kernel, bias, weights)
    dilations = layer.attribute("dilation_nd")
    pads = window_pads(layer, values.shape[2:], _window_extents(kernel.shape[2:], dilations))
    around = tuple(before for before, _ in pads)
    if min(around) < 0 or any(before != after for before, after in pads):
        values, around = pad(values, pads), (0,) * len(pads)
    convolve = functional.conv2d if kernel.dim() == 4 else functional.conv3d
    groups = layer.attribute("num_groups")
    result = convolve(values, kernel, None, layer.attribute("stride_nd"), around, dilations, groups)
    if bias is not None:  # separate: torch compiles other kernels for a convolution with bias
        result += bias.reshape(-1, *(1,) * len(pads))
    return _restore_leading_dims(result, x)


def deconvolution(
    layer: Layer, x: torch.Tensor, kernel: Maybe = None, bias: Maybe = None, /, **weights: torch.Tensor
) -> torch.Tensor:
    """Compute a transposed convolution. Padding makes the result smaller; with SAME padding it is ``stride`` times as
    large as the input. ``weights``: "kernel" and "bias" as flat tensors, if they are not inputs."""
    values = widen(_flatten_batch(layer, x))
    kernel, bias = _kernel_and_bias(layer, values, kernel, bias, weights)
    dilations, strides, groups = (layer.attribute(n) for n in ("dilation_nd", "stride_nd", "num_groups"))
    spread = functional.conv_transpose2d if kernel.dim() == 4 else functional.conv_transpose3d
    full = spread(values, kernel, bias, strides, 0, 0, groups, dilations)
    trims, mode = _declared_padding(layer), layer.attribute("padding_mode")
    if mode.startswith("SAME"):
        extents = _window_extents(kernel.shape[2:], dilations)
        trims = [_split_padding(max(extent - stride, 0), mode) for stride, extent in zip(strides, extents, strict=True)]
    return _restore_leading_dims(pad(full, [(-before, -after) for before, after in trims]), x)


def _average_pool(layer: Layer, x: torch.Tensor, pads: Pads) -> torch.Tensor:
    """Compute average pooling; the divisor counts a window's elements in the input, or also in the padding."""
    pool = functional.avg_pool2d if len(pads) == 2 else functional.avg_pool3d
    window = {"kernel_size": layer.attribute("window_size_nd"), "stride": layer.attribute("stride_nd")}
    counted = torch.ones_like(x[:1, :1])
    rest = pads
    if not layer.attribute("average_count_excludes_padding"):
        declared = pads if layer.attribute("padding_mode").startswith("SAME") else _declared_padding(layer)
        counted = pad(counted, declared, 1.0)
        rest = [(0, pad[1] - own[1]) for pad, own in zip(pads, declared, strict=True)]
    total, count = (pool(values, **window, divisor_override=1) for values in (pad(x, pads), pad(counted, rest)))
    return total / count


def _declared_padding(layer: Layer) -> Pads:
    return list(zip(layer.attribute("pre_padding"), layer.attribute("post_padding"), strict=True))


def _max_pool(layer: Layer, x: torch.Tensor, pads: Pads) -> torch.Tensor:
    pool = functional.max_pool2d if len(pads) == 2 else functional.max_pool3d
    values = pad(replace_nan(x, -math.inf), pads, -math.inf)
    result: torch.Tensor = pool(values, layer.attribute("window_size_nd"), layer.attribute("stride_nd"))
    return result


def pooling(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    values, kind = widen(_flatten_batch(layer, x)), layer.attribute("type")
    pads = window_pads(layer, values.shape[2:], layer.attribute("window_size_nd"))
    if kind == "MAX":
        result = _max_pool(layer, values, pads)
    elif kind == "AVERAGE":
        result = _average_pool(layer, values, pads)
    elif kind == "MAX_AVERAGE_BLEND":
        blend = layer.attribute("blend_factor")
        result = (1 - blend) * _max_pool(layer, values, pads) + blend * _average_pool(layer, values, pads)
    else:
        raise LayerError(f"the CPU executor does not support pooling of kind {kind}")
    return _restore_leading_dims(result, x)
