"""Compute TensorRT layers that index elements, in PyTorch: slice, gather, scatter."""

import math
from collections.abc import Sequence

import torch

from pipeline.network.description import Layer
from pipeline.runtime.reference.common import LayerError, Maybe, normalize_axis, reshape_along_axis, to_integers


def _check_indices(indices: torch.Tensor, length: int) -> torch.Tensor:
    if indices.numel() and (int(indices.min()) < 0 or int(indices.max()) >= length):
        raise LayerError(f"indices {int(indices.min())}..{int(indices.max())} exceed the range 0..{length - 1}")
    return indices.to(torch.int64)


def _reflect(index: torch.Tensor, length: int) -> torch.Tensor:
    """Mirror indices at the first and last element (reflect padding); a single element is repeated."""
    period = max(2 * length - 2, 1)
    folded = index.abs() % period
    return torch.where(folded >= length, period - folded, folded)


def _slice_axis(x: torch.Tensor, axis: int, start: int, size: int, stride: int) -> torch.Tensor:
    """Slice one axis, as a view where possible; TensorRT broadcasts with stride 0."""
    last = start + stride * (size - 1)
    if size and not (0 <= start < x.shape[axis] and 0 <= last < x.shape[axis]):
        raise LayerError(f"elements {start}..{last} of axis {axis} exceed the range 0..{x.shape[axis] - 1}")
    if size == 0:
        return x.narrow(axis, 0, 0)
    if stride == 0:
        return x.narrow(axis, start, 1).expand(_shape_with_size(x, axis, size))
    if stride > 0:
        return x[(slice(None),) * axis + (slice(start, last + 1, stride),)]
    return x.index_select(axis, torch.arange(start, last - 1, stride))


def _sample(x: torch.Tensor, axis: int, index: torch.Tensor, mode: str, fill_value: torch.Tensor | int) -> torch.Tensor:
    """Select elements of an axis; ``mode`` (WRAP, REFLECT, CLAMP or FILL) says what an index out of range selects."""
    length = x.shape[axis]
    if length == 0:
        if mode != "FILL" and index.numel():
            raise LayerError(f"the layer selects elements in mode {mode}, but axis {axis} has size 0")
        return x.new_zeros(_shape_with_size(x, axis, index.numel())) + torch.as_tensor(fill_value).to(x.dtype)
    if mode == "WRAP":
        return x.index_select(axis, index % length)
    if mode == "REFLECT":
        return x.index_select(axis, _reflect(index, length))
    taken = x.index_select(axis, index.clamp(0, length - 1))
    if mode == "CLAMP":
        return taken
    outside = reshape_along_axis((index < 0) | (index >= length), axis, x.dim())
    return torch.where(outside, torch.as_tensor(fill_value).to(x.dtype), taken)


def _shape_with_size(x: torch.Tensor, axis: int, size: int) -> list[int]:
    return [size if i == axis else length for i, length in enumerate(x.shape)]


def _input_or_attribute(layer: Layer, name: str, tensor: torch.Tensor | None) -> Sequence[int] | None:
    """Return a layer's setting as integers: the input ``tensor``, or if that is None the attribute ``name``."""
    given: Sequence[int] | None = layer.attribute(name) if tensor is None else to_integers(tensor)
    return given


def slice_(
    layer: Layer,
    x: torch.Tensor,
    starts: Maybe = None,
    sizes: Maybe = None,
    strides: Maybe = None,
    value: Maybe = None,
    axes_input: Maybe = None,
) -> torch.Tensor:
    """Slice a tensor; start, shape, stride and axes are inputs or attributes. Without axes, they apply to all axes."""
    start, size = _input_or_attribute(layer, "start", starts), _input_or_attribute(layer, "shape", sizes)
    stride, axes = _input_or_attribute(layer, "stride", strides), _input_or_attribute(layer, "axes", axes_input)
    if start is None or size is None or stride is None:
        raise LayerError("the layer's start, shape or stride is missing")
    mode = layer.attribute("mode")
    for axis, first, count, step in zip(range(x.dim()) if axes is None else axes, start, size, stride, strict=True):
        axis = normalize_axis(axis, x.dim())
        if mode == "STRICT_BOUNDS":
            x = _slice_axis(x, axis, first, count, step)
        elif (first, count, step) != (0, x.shape[axis], 1):
            x = _sample(x, axis, first + step * torch.arange(count), mode, 0 if value is None else value.reshape(()))
    return x


def _gather_default(x: torch.Tensor, indices: torch.Tensor, axis: int, batch_dims: int) -> torch.Tensor:
    """Gather slices along an axis; the first ``batch_dims`` dims of data and indices correspond."""
    flat = _check_indices(indices, x.shape[axis]).reshape(*indices.shape[:batch_dims], -1)
    if not batch_dims:
        taken = x.index_select(axis, flat.reshape(-1))
    else:
        taken = torch.stack([row.index_select(axis - 1, own) for row, own in zip(x, flat, strict=True)])
    return taken.reshape([*x.shape[:axis], *indices.shape[batch_dims:], *x.shape[axis + 1 :]])


def _flat_indices(x: torch.Tensor, indices: torch.Tensor, batch_dims: int) -> torch.Tensor:
    """Return the number of the row of ``x`` that each index tuple of a gather or scatter selects. Rows: batch dims and
    indexed dims are flattened to one. ``batch_dims``: the count of leading dims that ``x`` and ``indices`` share."""
    depth = indices.shape[-1]
    place = torch.zeros(indices.shape[:-1], dtype=torch.int64)
    for axis in range(batch_dims):
        place = place * x.shape[axis] + reshape_along_axis(torch.arange(x.shape[axis]), axis, place.dim())
    for part in range(depth):
        place = place * x.shape[batch_dims + part] + _check_indices(indices[..., part], x.shape[batch_dims + part])
    return place


def _gather_nd(x: torch.Tensor, indices: torch.Tensor, batch_dims: int) -> torch.Tensor:
    depth = batch_dims + indices.shape[-1]
    rest = x.shape[depth:]
    rows = x.reshape([math.prod(x.shape[:depth]), *rest])
    return rows.index_select(0, _flat_indices(x, indices, batch_dims).reshape(-1)).reshape([*indices.shape[:-1], *rest])


def gather(layer: Layer, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    axis, batched = normalize_axis(layer.attribute("axis"), x.dim()), layer.attribute("num_elementwise_dims")
    if layer.attribute("mode") == "ELEMENT":
        return x.gather(axis, _check_indices(indices, x.shape[axis]))
    if layer.attribute("mode") == "ND":
        return _gather_nd(x, indices, batched)
    return _gather_default(x, indices, axis, batched)


def scatter(layer: Layer, x: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """Return a copy of the data with the updates at the indices; of two writes to one element either may win."""
    if layer.attribute("mode") == "ELEMENT":
        axis = normalize_axis(layer.attribute("axis"), x.dim())
        return x.scatter(axis, _check_indices(indices, x.shape[axis]), updates)
    depth = indices.shape[-1]
    rows = x.reshape([math.prod(x.shape[:depth]), *x.shape[depth:]]).clone()
    places = _flat_indices(x, indices, 0).reshape(-1)
    rows[places] = updates.reshape([len(places), *x.shape[depth:]])
    return rows.reshape(x.shape)
