"""Slices: part of a tensor, in order, in steps, backwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from pipeline.aten.arguments import argument, bind
from pipeline.converters.declare import Rejection, dynamo_tensorrt_converter
from pipeline.impl import base
from pipeline.impl import slice as _slice
from pipeline.impl.index import iota, take, take_one
from pipeline.impl.shape import product, result_sizes
from pipeline.impl.slice import first, narrow
from pipeline.network.context import ConversionContext
from pipeline.settings import CompilationSettings

aten = torch.ops.aten


@dynamo_tensorrt_converter(aten.slice.Tensor, supports_dynamic_shapes=True)
def slice_(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """slice.Tensor(Tensor self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor"""
    x, dim, start, _, step = bind(target, args, kwargs)
    x, dim = base.tensor(ctx, name, x), base.axis(dim, base.rank(x))
    return narrow(ctx, name, x, dim, first(ctx, start, base.known_sizes(ctx, x)[dim]), result_sizes(ctx)[dim], step)


@dynamo_tensorrt_converter(aten.select.int, supports_dynamic_shapes=True)
def select(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """select.int(Tensor self, int dim, SymInt index) -> Tensor"""
    x, dim, index = bind(target, args, kwargs)
    x, dim = base.tensor(ctx, name, x), base.axis(dim, base.rank(x))
    if _slice.is_data(ctx, index):
        return take_one(ctx, name, x, base.scalar_of(ctx, name, index), dim)
    return _slice.select(ctx, name, x, dim, index)


@dynamo_tensorrt_converter(aten.unbind.int, supports_dynamic_shapes=True)
def unbind(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """unbind.int(Tensor self, int dim=0) -> Tensor[]"""
    x, dim = bind(target, args, kwargs)
    x, dim = base.tensor(ctx, name, x), base.axis(dim, base.rank(x))
    assert ctx.node is not None
    return [_slice.select(ctx, name, x, dim, i) for i in range(len(ctx.node.meta["val"]))]


@dynamo_tensorrt_converter(aten.flip.default, supports_dynamic_shapes=True)
def flip(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """flip(Tensor self, int[] dims) -> Tensor"""
    x, dims = bind(target, args, kwargs)
    return _slice.flip(ctx, name, base.tensor(ctx, name, x), dims if base.rank(x) else [])


@dynamo_tensorrt_converter(aten.roll.default, supports_dynamic_shapes=True)
def roll(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor. Without dims the elements are shifted in a row."""
    x, shifts, dims = bind(target, args, kwargs)
    x = base.tensor(ctx, name, x)
    if dims or base.rank(x) == 0:
        return _slice.roll(ctx, name, x, shifts, dims) if base.rank(x) else x
    sizes = result_sizes(ctx)
    row = base.reshape(ctx, name, x, [product(sizes)])
    return base.reshape(ctx, name, _slice.roll(ctx, name, row, shifts, [0]), sizes)


@dynamo_tensorrt_converter(aten.diagonal.default, supports_dynamic_shapes=True)
def diagonal(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """diagonal(Tensor self, int offset=0, int dim1=0, int dim2=1) -> Tensor"""
    x, offset, dim1, dim2 = bind(target, args, kwargs)
    return _slice.diagonal(ctx, name, base.tensor(ctx, name, x), offset, dim1, dim2, result_sizes(ctx)[-1])


@dynamo_tensorrt_converter(aten.unfold.default, supports_dynamic_shapes=True)
def unfold(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """unfold(Tensor self, int dimension, int size, int step) -> Tensor"""
    x, dim, size, step = bind(target, args, kwargs)
    x, rank = base.tensor(ctx, name, x), base.rank(x)
    if rank == 0:
        return base.expand(ctx, name, x, result_sizes(ctx))
    dim = base.axis(dim, rank)
    windows = take(ctx, name, x, iota(ctx, name, [result_sizes(ctx)[dim], size], [step, 1]), dim)
    return base.permute(ctx, name, windows, [*range(dim + 1), *range(dim + 2, rank + 1), dim + 1])


def is_contiguous(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The tensor is contiguous and whole: an engine knows elements, not storage."""
    value = argument(node, "self").meta["val"]
    if value.is_contiguous() and statically_known_true(value.storage_offset() == 0):
        return True
    return Rejection("as_strided of a view of another tensor: an engine has no strides", "call contiguous() first")


@dynamo_tensorrt_converter(aten.as_strided.default, capability_validator=is_contiguous, supports_dynamic_shapes=True)
def as_strided(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """as_strided(Tensor self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor"""
    x, size, stride, offset = bind(target, args, kwargs)
    row = _row(ctx, name, x)
    if list(stride) == [product(size[i + 1 :]) for i in range(len(size))]:
        part = narrow(ctx, name, row, 0, offset or 0, product(size))
        return base.reshape(ctx, name, part, size)
    return take(ctx, name, row, iota(ctx, name, size, stride, offset or 0), 0)


def _row(ctx: ConversionContext, name: str, x: Any) -> Any:
    """All elements in a row."""
    x = base.tensor(ctx, name, x)
    return base.reshape(ctx, name, x, [product(base.known_sizes(ctx, x))])


def no_larger(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The new size has no more elements than there are: what memory holds beyond them is not defined."""
    old, new = argument(node, "self").meta["val"].numel(), node.meta["val"].numel()
    if statically_known_true(new <= old):
        return True
    return Rejection(f"resizes {old} elements to {new}: others than there are would be undefined")


@dynamo_tensorrt_converter(aten.resize.default, capability_validator=no_larger, supports_dynamic_shapes=True)
def resize(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """resize(Tensor self, SymInt[] size, *, MemoryFormat? memory_format=None) -> Tensor"""
    part = narrow(ctx, name, _row(ctx, name, args[0]), 0, 0, product(args[1]))
    return base.reshape(ctx, name, part, args[1])
