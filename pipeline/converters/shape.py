"""Convert operators that concatenate, split, repeat, pad, slice and flip tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from pipeline.converters.binding import CompilationSettings, Rejection, argument, aten, converts
from pipeline.impl import base
from pipeline.impl import slice as _slice
from pipeline.impl.base import ITensor, Net, Size, Value
from pipeline.impl.index import iota, take, take_one
from pipeline.impl.shape import concatenate, result_sizes, size_product, size_sum, sizes_of
from pipeline.impl.shape import repeat as _repeat
from pipeline.impl.slice import narrow, slice_start


@converts(aten.cat.default)
def cat(net: Net, tensors: Sequence[Value], dim: int) -> ITensor:
    """cat(Tensor[] tensors, int dim=0) -> Tensor. Tensors of shape [0] are ignored, as in eager."""
    value = net.node.meta["val"]
    parts = [t for t in tensors if base.rank(t) == value.dim() and (value.dim() > 1 or base.dims(t) != (0,))]
    return concatenate(net, parts or tensors[:1], dim, value.dtype)


@converts(aten.stack.default)
def stack(net: Net, tensors: Sequence[Value], dim: int) -> ITensor:
    """stack(Tensor[] tensors, int dim=0) -> Tensor"""
    value, dim = net.node.meta["val"], base.axis(dim, net.node.meta["val"].dim())
    if dim < value.dim() - 1 and all(isinstance(s, int) for s in sizes_of(value)[dim:]):
        joined = concatenate(net, tensors, dim, value.dtype)
        return base.reshape(net, joined, result_sizes(net))
    parts = [base.unsqueeze(net, base.tensor(net, t), [dim]) for t in tensors]
    return concatenate(net, parts, dim, value.dtype)


@converts(
    *(aten.split.Tensor, aten.split.sizes, aten.split_with_sizes.default),
    *(aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default, aten.chunk.default),
)
def split(net: Net, input: Value, dim: int) -> list[ITensor]:
    """split_with_sizes(Tensor self, SymInt[] split_sizes, int dim=0) -> Tensor[]"""
    input, dim = base.tensor(net, input), base.axis(dim, base.rank(input))
    sizes = [sizes_of(part)[dim] for part in net.node.meta["val"]]
    return [narrow(net, input, dim, size_sum(sizes[:i]), size) for i, size in enumerate(sizes)]


@converts(aten.repeat.default)
def repeat(net: Net, input: Value, repeats: Sequence[int]) -> ITensor:
    """repeat(Tensor self, SymInt[] repeats) -> Tensor"""
    input = base.tensor(net, input, rank=len(repeats))
    return _repeat(net, input, repeats, result_sizes(net))


@converts(aten.slice.Tensor)
def slice_(net: Net, input: Value, dim: int, start: int | None, step: int) -> ITensor:
    """slice.Tensor(Tensor self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor"""
    input, dim = base.tensor(net, input), base.axis(dim, base.rank(input))
    first = slice_start(net, start, base.known_sizes(net, input)[dim])
    return narrow(net, input, dim, first, result_sizes(net)[dim], step)


@converts(aten.select.int)
def select(net: Net, input: Value, dim: int, index: int) -> ITensor:
    """select.int(Tensor self, int dim, SymInt index) -> Tensor"""
    input, dim = base.tensor(net, input), base.axis(dim, base.rank(input))
    if _slice.is_data_dependent(net, index):
        return take_one(net, input, base.size_as_scalar(net, index), dim)
    return _slice.select(net, input, dim, index)


@converts(aten.unbind.int)
def unbind(net: Net, input: Value, dim: int) -> list[ITensor]:
    """unbind.int(Tensor self, int dim=0) -> Tensor[]"""
    input, dim = base.tensor(net, input), base.axis(dim, base.rank(input))
    return [_slice.select(net, input, dim, i) for i in range(len(net.node.meta["val"]))]


@converts(aten.flip.default)
def flip(net: Net, input: Value, dims: Sequence[int]) -> ITensor:
    """flip(Tensor self, int[] dims) -> Tensor"""
    return _slice.flip(net, base.tensor(net, input), dims if base.rank(input) else [])


@converts(aten.roll.default)
def roll(net: Net, input: Value, shifts: Sequence[int], dims: Sequence[int]) -> ITensor:
    """roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor. Without dims, it rolls the flattened tensor."""
    input = base.tensor(net, input)
    if dims or base.rank(input) == 0:
        return _slice.roll(net, input, shifts, dims) if base.rank(input) else input
    sizes = result_sizes(net)
    row = base.reshape(net, input, [size_product(sizes)])
    return base.reshape(net, _slice.roll(net, row, shifts, [0]), sizes)


@converts(aten.diagonal.default)
def diagonal(net: Net, input: Value, offset: int, dim1: int, dim2: int) -> ITensor:
    """diagonal(Tensor self, int offset=0, int dim1=0, int dim2=1) -> Tensor"""
    return _slice.diagonal(net, base.tensor(net, input), offset, dim1, dim2, result_sizes(net)[-1])


@converts(aten.unfold.default)
def unfold(net: Net, input: Value, dimension: int, size: int, step: int) -> ITensor:
    """unfold(Tensor self, int dimension, int size, int step) -> Tensor"""
    input, rank = base.tensor(net, input), base.rank(input)
    if rank == 0:
        return base.expand(net, input, result_sizes(net))
    dimension = base.axis(dimension, rank)
    windows = take(net, input, iota(net, [result_sizes(net)[dimension], size], [step, 1]), dimension)
    return base.permute(net, windows, [*range(dimension + 1), *range(dimension + 2, rank + 1), dimension + 1])


@converts(aten.as_strided.default)
def as_strided(
    net: Net, input: Value, size: Sequence[int], stride: Sequence[int], storage_offset: int | None
) -> ITensor:
    """as_strided(Tensor self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor

    Gather from the flattened input, which is contiguous in every program (`pipeline.capture.as_strided`).
    """
    row = _flatten_to_1d(net, input)
    if list(stride) == [size_product(size[i + 1 :]) for i in range(len(size))]:
        part = narrow(net, row, 0, storage_offset or 0, size_product(size))
        return base.reshape(net, part, size)
    return take(net, row, iota(net, size, stride, storage_offset or 0), 0)


def _flatten_to_1d(net: Net, x: Any) -> Any:
    x = base.tensor(net, x)
    return base.reshape(net, x, [size_product(base.known_sizes(net, x))])


def check_resize(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The new size must not have more elements than the tensor: eager leaves additional elements undefined."""
    old, new = argument(node, "self").meta["val"].numel(), node.meta["val"].numel()
    if statically_known_true(new <= old):
        return True
    return Rejection(f"resize from {old} to {new} elements leaves the additional elements undefined")


@converts(aten.resize.default, validator=check_resize)
def resize(net: Net, input: Value, size: Sequence[int]) -> ITensor:
    """resize(Tensor self, SymInt[] size, *, MemoryFormat? memory_format=None) -> Tensor"""
    part = narrow(net, _flatten_to_1d(net, input), 0, 0, size_product(size))
    return base.reshape(net, part, size)


PADDINGS = {
    **dict.fromkeys((getattr(aten, f"reflection_pad{n}d").default for n in (1, 2, 3)), "reflect"),
    **dict.fromkeys((getattr(aten, f"replication_pad{n}d").default for n in (1, 2, 3)), "replicate"),
    aten._pad_circular.default: "circular",
    aten.constant_pad_nd.default: "constant",
    aten.pad.default: "",
}


@converts(PADDINGS)
def pad(
    net: Net,
    fixed_mode: str,
    input: Value,
    pad: Sequence[Size] = (),
    padding: Sequence[Size] = (),
    mode: str = "",
    value: float | None = None,
) -> ITensor:
    """pad(Tensor self, SymInt[] pad, str mode="constant", float? value=None) -> Tensor;
    constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor;
    reflection_pad1d(Tensor self, SymInt[2] padding) -> Tensor (``fixed_mode`` "reflect")"""
    x, amounts, value = base.tensor(net, input), pad or padding, 0 if value is None else value
    return _slice.pad(net, x, amounts, result_sizes(net), fixed_mode or mode, value)
