"""Tensors made from sizes and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.aten.arguments import argument, bind
from pipeline.converters.declare import Rejection
from pipeline.converters.results import as_result, converts, result_of
from pipeline.impl import base, creation
from pipeline.impl.shape import result_sizes
from pipeline.network.context import ConversionContext
from pipeline.settings import CompilationSettings

aten = torch.ops.aten

Args = Sequence[Any]
Kwargs = Mapping[str, Any]


@converts(aten.full.default, aten.full_like.default, aten.fill.Scalar, aten.fill.Tensor, aten.new_full.default)
def full(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, …) -> Tensor"""
    place = 2 if target is aten.new_full.default else 1
    value = bind(target, args, kwargs)[place]
    return creation.full(ctx, name, result_sizes(ctx), value, result_of(ctx).dtype)


@converts(
    aten.empty.memory_format,
    aten.empty_permuted.default,
    aten.empty_strided.default,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
)
def empty(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, …) -> Tensor. Any value will do: zeros."""
    return creation.full(ctx, name, result_sizes(ctx), 0, result_of(ctx).dtype)


@converts(aten.scalar_tensor.default)
def scalar_tensor(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """scalar_tensor(Scalar s, *, ScalarType? dtype=None, …) -> Tensor"""
    return as_result(ctx, name, base.tensor(ctx, name, args[0], result_of(ctx).dtype))


@converts(aten.arange.start_step, aten.arange.start, aten.arange.default)
def arange(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, …) -> Tensor"""
    start = args[0] if target is not aten.arange.default else 0
    step = bind(target, args, kwargs)[2] if target is aten.arange.start_step else 1
    (length,) = result_sizes(ctx)
    return creation.arange(ctx, name, start, step, length, result_of(ctx).dtype)


def without_chance(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """In training, dropout draws random numbers, and only PyTorch draws those that eager draws."""
    train, p = argument(node, "train"), argument(node, "p")
    return train is False or p == 0 or Rejection("in training, dropout draws random numbers", "call model.eval() first")


@converts(aten.native_dropout.default, validator=without_chance)
def native_dropout(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)"""
    return args[0], creation.full(ctx, name, result_sizes(ctx), True, torch.bool)
