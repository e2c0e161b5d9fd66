"""Read elements of tensors at indices that other tensors contain."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, Size, Value, block
from pipeline.impl.shape import size_product
from pipeline.trt import to_trt, trt


@block
def take(net: Net, x: ITensor, indices: Value, dim: int) -> ITensor:
    """Select elements along a dim; the dims of ``indices``, which must be in bounds, take the place of this dim."""
    return net.add("gather", x, base.tensor(net, indices), base.axis(dim, base.rank(x))).get_output(0)


@block
def index_select(net: Net, x: ITensor, dim: int, indices: Value) -> ITensor:
    """Select elements along a dim by a vector of indices or a single index; a 0-d tensor counts as one element."""
    if base.rank(x) == 0:
        return x
    if base.rank(indices) == 0:
        indices = base.tensor(net, indices, rank=1)
    return take(net, x, indices, dim)


@block
def gather(net: Net, x: ITensor, indices: Value, dim: int) -> ITensor:
    """Return ``out[i][j] = x[index[i][j]][j]`` for ``dim=0``, as torch.gather; ``indices`` may be smaller."""
    layer = net.add("gather_v2", x, base.tensor(net, indices), trt.GatherMode.ELEMENT)
    layer.axis = base.axis(dim, base.rank(x))
    return layer.get_output(0)


@block
def take_one(net: Net, x: ITensor, index: ITensor, dim: int) -> ITensor:
    """Select the element along a dim at a 0-d index, which may be negative; the dim is removed."""
    size = base.size(net, x, dim)
    return take(net, x, wrap_negative_indices(net, index, size), dim)


@block
def nonzero(net: Net, x: Value) -> ITensor:
    """Return the int64 coordinates of the nonzero elements as a matrix with a row for each dim."""
    layer = net.add("non_zero", base.tensor(net, x, torch.bool))
    return base.cast(net, layer.get_output(0), torch.int64)


SMALL = 4096
"""The maximum number of elements of a constant that is cheaper than the layers which would compute it."""


@block
def iota(net: Net, shape: Sequence[Size], steps: Sequence[Size], start: Size = 0) -> ITensor:
    """Return an int64 tensor of a shape whose elements are ``start`` plus the sum of each coordinate times its step."""
    if all(isinstance(v, int) for v in (*shape, *steps, start)) and math.prod(shape) <= SMALL:
        result = torch.full(tuple(shape), start, dtype=torch.int64)
        for axis, (size, step) in enumerate(zip(shape, steps, strict=True)):
            result += (torch.arange(size) * step).reshape([-1 if i == axis else 1 for i in range(len(shape))])
        return base.constant(net, result)
    layer = net.add("fill", (1,) * len(shape), trt.FillOperation.LINSPACE, to_trt(torch.int64))
    layer.set_input(0, base.shape_tensor(net, shape))
    layer.set_input(1, base.size_as_scalar(net, start))
    layer.set_input(2, base.shape_tensor(net, steps))
    return base.with_sizes(net, layer.get_output(0), shape)


@block
def wrap_negative_indices(net: Net, indices: Value, size: Size) -> Value:
    """Add ``size`` to each negative index; constant indices need no layer."""
    if isinstance(indices, torch.Tensor):
        if not indices.numel() or int(indices.min()) >= 0:
            return indices
        if isinstance(size, int):
            return torch.where(indices < 0, indices + size, indices)
    index = base.tensor(net, indices)
    zero = base.tensor(net, 0, base.dtype_of(index), rank=base.rank(index))
    negative = base.elementwise(net, "LESS", index, zero)
    length = _broadcast_size(net, size, index)
    shifted = base.elementwise(net, "SUM", index, length)
    return net.add("select", negative, shifted, index).get_output(0)


def _broadcast_size(net: Net, size: Size, index: ITensor) -> ITensor:
    """Return a size as a tensor of the dtype and rank of an index, so that both broadcast."""
    rank, dtype = base.rank(index), base.dtype_of(index)
    if isinstance(size, int):
        return base.tensor(net, size, dtype, rank=rank)
    value = base.size_tensor(net, size) if rank else base.size_as_scalar(net, size)
    return base.tensor(net, value, dtype, rank=rank)


@block
def flatten_indices(net: Net, indices: Sequence[Value], sizes: Sequence[Size]) -> Value:
    """Combine index tensors of several dims, which broadcast, into one index into the flattened dims."""
    if all(isinstance(i, torch.Tensor) for i in indices) and all(isinstance(s, int) for s in sizes):
        place = indices[0].long()
        for index, size in zip(indices[1:], sizes[1:], strict=True):
            place = place * size + index
        return place
    dtype = torch.int64 if torch.int64 in map(base.dtype_of, indices) else torch.int32
    rank = max(map(base.rank, indices))
    result = base.tensor(net, indices[0], dtype, rank=rank)
    for index, size in zip(indices[1:], sizes[1:], strict=True):
        result = base.elementwise(net, "PROD", result, _broadcast_size(net, size, result))
        result = base.elementwise(net, "SUM", result, base.tensor(net, index, dtype, rank=rank))
    return result


@block
def index(net: Net, x: ITensor, indices: Sequence[Value | None], non_negative: frozenset[int] = frozenset()) -> ITensor:
    """Return ``x[indices]`` for integer tensors and None; ``non_negative``: positions of indices known to be >= 0."""
    axes = [i for i, each in enumerate(indices) if each is not None]
    sizes = base.known_sizes(net, x)
    exact = [s if s is not None else base.size(net, x, i) for i, s in enumerate(sizes)]
    given = [indices[a] if a in non_negative else wrap_negative_indices(net, indices[a], exact[a]) for a in axes]
    if len(axes) == 1:
        return take(net, x, given[0], axes[0])
    merged, place = merge_dims(net, x, axes, exact)
    return take(net, merged, flatten_indices(net, given, [exact[a] for a in axes]), place)


@block
def merge_dims(net: Net, x: ITensor, axes: Sequence[int], sizes: Sequence[Size]) -> tuple[ITensor, int]:
    """Merge the dims ``axes`` of ``x``, whose dims have ``sizes``. Return the tensor and the position of the merged
    dim: the dims stay in place if they are adjacent, and move to the front if not."""
    adjacent = list(axes) == list(range(axes[0], axes[-1] + 1))
    rest = [i for i in range(base.rank(x)) if i not in axes]
    place = axes[0] if adjacent else 0
    order = [*rest[:place], *axes, *rest[place:]]
    moved = base.permute(net, x, order)
    one = size_product([sizes[a] for a in axes]) if all(not isinstance(sizes[a], trt.ITensor) for a in axes) else -1
    shape = [*(sizes[i] for i in rest[:place]), one, *(sizes[i] for i in rest[place:])]
    return base.reshape(net, moved, shape), place
