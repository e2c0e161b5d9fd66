"""Tensors made from sizes and numbers."""

from __future__ import annotations

import torch

from pipeline.aten.arguments import argument
from pipeline.converters.binding import converts
from pipeline.converters.declare import Rejection
from pipeline.converters.results import as_result, result_of
from pipeline.impl import base, creation
from pipeline.impl.base import ITensor, Size, Value
from pipeline.impl.shape import result_sizes
from pipeline.network.net import Net
from pipeline.settings import CompilationSettings

aten = torch.ops.aten


@converts(aten.full.default, aten.full_like.default, aten.fill.Scalar, aten.fill.Tensor, aten.new_full.default)
def full(net: Net, fill_value: Value = None, value: Value = None) -> ITensor:
    """full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, …) -> Tensor;
    fill(Tensor self, Scalar value) -> Tensor"""
    return creation.full(net, result_sizes(net), fill_value if value is None else value, result_of(net).dtype)


@converts(
    aten.empty.memory_format,
    aten.empty_permuted.default,
    aten.empty_strided.default,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
)
def empty(net: Net) -> ITensor:
    """empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, …) -> Tensor. Any value will do: zeros."""
    return creation.full(net, result_sizes(net), 0, result_of(net).dtype)


@converts(aten.scalar_tensor.default)
def scalar_tensor(net: Net, s: float) -> ITensor:
    """scalar_tensor(Scalar s, *, ScalarType? dtype=None, …) -> Tensor"""
    return as_result(net, base.tensor(net, s, result_of(net).dtype))


@converts(aten.arange.start_step, aten.arange.start, aten.arange.default)
def arange(net: Net, start: Size = 0, step: Size = 1) -> ITensor:
    """arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, …) -> Tensor"""
    (length,) = result_sizes(net)
    return creation.arange(net, start, step, length, result_of(net).dtype)


def without_chance(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """In training, dropout draws random numbers, and only PyTorch draws those that eager draws."""
    train, p = argument(node, "train"), argument(node, "p")
    return train is False or p == 0 or Rejection("in training, dropout draws random numbers", "call model.eval() first")


@converts(aten.native_dropout.default, validator=without_chance)
def native_dropout(net: Net, input: Value) -> tuple[ITensor | None, ...]:
    """native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)"""
    return input, creation.full(net, result_sizes(net), True, torch.bool)
