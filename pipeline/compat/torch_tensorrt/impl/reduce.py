"""Reductions over dims."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import Argument, Expression, call

aten = torch.ops.aten

Dims = int | Sequence[int] | None


def _dims(dim: Dims) -> list[int]:
    """Dims as ATen's reductions take them: none for all."""
    return [] if dim is None else [dim] if isinstance(dim, int) else list(dim)


@block
def amax(input_val: Argument, dim: Dims = (), keepdim: bool = False) -> Expression:
    """aten.amax.default"""
    return call(aten.amax.default, input_val, _dims(dim), keepdim)


@block
def amin(input_val: Argument, dim: Dims = (), keepdim: bool = False) -> Expression:
    """aten.amin.default"""
    return call(aten.amin.default, input_val, _dims(dim), keepdim)


@block
def sum(input_val: Argument, dim: Dims, keepdim: bool) -> Expression:
    """aten.sum.dim_IntList: of integers and bools int64"""
    return call(aten.sum.dim_IntList, input_val, _dims(dim), keepdim)


@block
def mean(input_val: Argument, dim: Dims, keepdim: bool) -> Expression:
    """aten.mean.dim"""
    return call(aten.mean.dim, input_val, _dims(dim), keepdim)


@block
def prod(input_val: Argument, dim: Dims, keepdim: bool) -> Expression:
    """aten.prod.dim_int for each dim, the last first; all of them without ``keepdim`` is aten.prod.default"""
    if not _dims(dim) and not keepdim:
        return call(aten.prod.default, input_val)
    rank = len(input_val.shape)
    made: Expression = input_val
    for each in sorted((d % rank for d in _dims(dim) or range(rank)), reverse=True):
        made = call(aten.prod.dim_int, made, each, keepdim)
    return made


@block
def max(input_val: Argument, dim: Dims, keepdim: bool, return_indices: bool) -> Expression:
    """aten.amax.default; with indices aten.max.dim, of one dim -> [values, indices]"""
    return _extreme(aten.max.dim, aten.amax.default, input_val, dim, keepdim, return_indices)


@block
def min(input_val: Argument, dim: Dims, keepdim: bool, return_indices: bool) -> Expression:
    """aten.amin.default; with indices aten.min.dim, of one dim -> [values, indices]"""
    return _extreme(aten.min.dim, aten.amin.default, input_val, dim, keepdim, return_indices)


def _extreme(
    indexed: Argument, plain: Argument, x: Argument, dim: Dims, keepdim: bool, return_indices: bool
) -> Expression:
    dims = _dims(dim)
    if not return_indices:
        return call(plain, x, dims, keepdim)
    if len(dims) == 1:
        both = call(indexed, x, dims[0], keepdim)
        return [both[0], both[1]]
    return [call(plain, x, dims, keepdim), None]


@block
def any(input_val: Argument, dim: Dims = None, keepdim: bool = False) -> Expression:
    """aten.any.dims"""
    return call(aten.any.dims, input_val, _dims(dim) or None, keepdim)


@block
def all(input_val: Argument, dim: Dims = None, keepdim: bool = False) -> Expression:
    """aten.all.dims"""
    return call(aten.all.dims, input_val, _dims(dim) or None, keepdim)
