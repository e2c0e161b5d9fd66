"""Compute TensorRT layers that move elements or create tensors, in PyTorch."""

import math
from collections.abc import Sequence

import torch
from torch.nn import functional

from pipeline.network.description import Layer
from pipeline.runtime.reference.common import LayerError, Maybe, normalize_axis, reshape_along_axis, to_integers
from pipeline.runtime.reference.quantized import element_dtype, unpack
from pipeline.trt import torch_dtype


def constant(layer: Layer, *, weights: Maybe = None) -> torch.Tensor:
    """Return a constant; an empty constant has no weight."""
    shape, dtype = layer.attribute("shape"), layer.outputs[0].dtype
    return torch.empty(shape, dtype=element_dtype(dtype)) if weights is None else unpack(weights, dtype).reshape(shape)


def _permute(x: torch.Tensor, order: tuple[int, ...] | None) -> torch.Tensor:
    return x if order is None else x.permute(order[: x.dim()])


def reshape(x: torch.Tensor, sizes: Sequence[int], zero_is_placeholder: bool) -> torch.Tensor:
    """Reshape a tensor: -1 is inferred; 0 copies the input's dim if ``zero_is_placeholder``, else the dim is empty."""
    shape = [x.shape[i] if size == 0 and zero_is_placeholder else size for i, size in enumerate(sizes)]
    if -1 in shape:
        known = math.prod(size for size in shape if size != -1)
        if known == 0:
            raise LayerError(f"-1 in {list(sizes)} is ambiguous, since another dimension has size 0")
        shape[shape.index(-1)] = x.numel() // known
    return x.reshape(shape)


def shuffle(layer: Layer, x: torch.Tensor, dynamic_shape: Maybe = None) -> torch.Tensor:
    x = _permute(x, layer.attribute("first_transpose"))
    wanted = layer.attribute("reshape_dims") if dynamic_shape is None else to_integers(dynamic_shape)
    if wanted is not None:
        x = reshape(x, wanted, layer.attribute("zero_is_placeholder"))
    return _permute(x, layer.attribute("second_transpose"))


def concatenation(layer: Layer, *parts: torch.Tensor) -> torch.Tensor:
    return torch.cat(parts, layer.attribute("axis"))


def shape(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(list(x.shape), dtype=torch_dtype(layer.outputs[0].dtype))


def squeeze(layer: Layer, x: torch.Tensor, axes: torch.Tensor) -> torch.Tensor:
    gone = {normalize_axis(axis, x.dim()) for axis in to_integers(axes)}
    if any(x.shape[axis] != 1 for axis in gone):
        raise LayerError(f"squeezed axes {sorted(gone)} of shape {list(x.shape)} must all have size 1")
    return x.reshape([size for axis, size in enumerate(x.shape) if axis not in gone])


def unsqueeze(layer: Layer, x: torch.Tensor, axes: torch.Tensor) -> torch.Tensor:
    rank = x.dim() + axes.numel()
    for axis in sorted(normalize_axis(axis, rank) for axis in to_integers(axes)):
        x = x.unsqueeze(axis)
    return x


def padding(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    """Pad the last two dims of a tensor with zeros; negative amounts crop it."""
    before, after = layer.attribute("pre_padding_nd"), layer.attribute("post_padding_nd")
    return functional.pad(x, (before[1], after[1], before[0], after[0]))


def reverse_sequence(layer: Layer, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Reverse the first `length` entries of each sequence."""
    batch, sequence = layer.attribute("batch_axis"), layer.attribute("sequence_axis")
    place = reshape_along_axis(torch.arange(x.shape[sequence]), sequence, x.dim())
    end = reshape_along_axis(lengths.to(torch.int64), batch, x.dim())
    return x.gather(sequence, torch.where(place < end, end - 1 - place, place).expand(x.shape))


def fill(layer: Layer, sizes: Maybe = None, alpha: Maybe = None, beta: Maybe = None) -> torch.Tensor:
    """Return a tensor of alpha + sum of beta[axis] * index[axis]; beta may be a scalar if the result is a vector."""
    if layer.attribute("operation") != "LINSPACE":
        raise LayerError(f"the CPU executor does not support {layer.attribute('operation')}: it is random")
    dtype = torch_dtype(layer.outputs[0].dtype)
    result_shape = layer.attribute("shape") if sizes is None else to_integers(sizes)
    result = torch.as_tensor(layer.attribute("alpha") if alpha is None else alpha).to(dtype).expand(result_shape)
    step = torch.as_tensor(layer.attribute("beta") if beta is None else beta).to(dtype).reshape(-1)
    if step.numel() != len(result_shape):
        raise LayerError(f"LINSPACE needs a step (beta) for each of {len(result_shape)} dimensions, got {step.numel()}")
    for axis, size in enumerate(result_shape):
        result = result + reshape_along_axis(torch.arange(size, dtype=dtype) * step[axis], axis, len(result_shape))
    return result


def one_hot(layer: Layer, indices: torch.Tensor, values: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
    """One-hot encode indices; ``values`` are [off, on], and an index outside the depth selects only off values."""
    axis = normalize_axis(layer.attribute("axis"), indices.dim() + 1)
    classes = reshape_along_axis(torch.arange(int(depth)), axis, indices.dim() + 1)
    return torch.where(indices.unsqueeze(axis) == classes, values[1], values[0])
