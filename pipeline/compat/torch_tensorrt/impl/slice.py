"""Slices, repetitions, flips and running sums of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import Argument, Expression, call

aten = torch.ops.aten


@block
def slice_op(input: Argument, dim: int, start: Argument, stop: Argument, step: int) -> Expression:
    """aten.slice.Tensor: from ``start`` up to ``stop``; None for an end"""
    return call(aten.slice.Tensor, input, dim, start, stop, step)


@block
def slice(input: Argument, start: Sequence[Argument], shape: Sequence[Argument], stride: Sequence[int]) -> Expression:
    """A slice of each dim: where it begins, how many elements it has, and the step"""
    made: Expression = input
    for dim, (first, size, step) in enumerate(zip(start, shape, stride, strict=True)):
        made = call(aten.slice.Tensor, made, dim, first, first + (size - 1) * step + 1 if size else first, step)
    return made


@block
def expand(input_t: Argument, shape: Sequence[Argument]) -> Expression:
    """aten.expand.default: broadcast to a shape; -1 leaves a size unchanged"""
    return call(aten.expand.default, input_t, list(shape))


@block
def chunk(input: Argument, chunks: int, dim: int) -> Expression:
    """aten.chunk.default -> tensors"""
    size = input.shape[dim]
    count = chunks if size < 0 else -(-size // -(-size // chunks)) if size else chunks
    made = call(aten.chunk.default, input, chunks, dim)
    return [made[i] for i in range(count)]


@block
def cumsum(input: Argument, dim: int) -> Expression:
    """aten.cumsum.default"""
    return call(aten.cumsum.default, input, dim)


@block
def tile(input: Argument, dims: Sequence[int]) -> Expression:
    """aten.repeat.default; missing numbers are 1"""
    return call(aten.repeat.default, input, [1] * (len(input.shape) - len(dims)) + list(dims))


@block
def flip(input: Argument, dims: Sequence[int]) -> Expression:
    """aten.flip.default"""
    return call(aten.flip.default, input, list(dims))


@block
def diagonal(input: Argument, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Expression:
    """aten.diagonal.default"""
    return call(aten.diagonal.default, input, offset, dim1, dim2)


@block
def as_strided(
    input: Argument, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Expression:
    """aten.as_strided.default, of a contiguous tensor"""
    return call(aten.as_strided.default, input, list(size), list(stride), storage_offset)
