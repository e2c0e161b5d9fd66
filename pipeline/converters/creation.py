"""Convert operators that create tensors from sizes and numbers."""

from __future__ import annotations

from typing import Any

import torch

from pipeline.aten.arguments import argument
from pipeline.aten.types import aten
from pipeline.converters.binding import converts
from pipeline.converters.declare import Rejection
from pipeline.converters.decompositions import register_torch_trt_decomposition
from pipeline.converters.result_types import as_result, result_of
from pipeline.impl import base, shape
from pipeline.impl.base import ITensor, Size, Value
from pipeline.impl.shape import result_sizes
from pipeline.network.net import Net
from pipeline.settings import CompilationSettings


@converts(aten.full.default)
def full(net: Net, fill_value: Value) -> ITensor:
    """full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, …) -> Tensor"""
    return shape.full(net, result_sizes(net), fill_value, result_of(net).dtype)


@register_torch_trt_decomposition(aten.full_like.default)
@register_torch_trt_decomposition(aten.fill.Scalar)
def full_like(self: torch.Tensor, fill_value: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    """full_like(Tensor self, Scalar fill_value, *, ScalarType? dtype=None, …) -> Tensor;
    fill.Scalar(Tensor self, Scalar value) -> Tensor

    Only the shape of ``self`` is read, here and below, so it is not an input of the engine."""
    return aten.full.default(self.shape, fill_value, dtype=dtype or self.dtype, device=self.device)


@register_torch_trt_decomposition(aten.fill.Tensor)
def fill(self: torch.Tensor, value: torch.Tensor) -> Any:
    """fill.Tensor(Tensor self, Tensor value) -> Tensor"""
    value = value if value.dtype == self.dtype else value.to(self.dtype)
    return value.expand(self.shape) if self.dim() else value.clone()


@register_torch_trt_decomposition(aten.new_full.default)
def new_full(
    self: torch.Tensor, size: Any, fill_value: Any, *, dtype: torch.dtype | None = None, **options: Any
) -> Any:
    """new_full(Tensor self, SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, …) -> Tensor"""
    return aten.full.default(size, fill_value, dtype=dtype or self.dtype, device=self.device)


@register_torch_trt_decomposition(aten.empty_like.default)
def empty_like(self: torch.Tensor, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    """empty_like(Tensor self, *, ScalarType? dtype=None, …) -> Tensor"""
    return aten.empty.memory_format(self.shape, dtype=dtype or self.dtype, device=self.device)


@register_torch_trt_decomposition(aten.new_empty.default)
def new_empty(self: torch.Tensor, size: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    """new_empty(Tensor self, SymInt[] size, *, ScalarType? dtype=None, …) -> Tensor"""
    return aten.empty.memory_format(size, dtype=dtype or self.dtype, device=self.device)


@register_torch_trt_decomposition(aten.new_empty_strided.default)
def new_empty_strided(
    self: torch.Tensor, size: Any, stride: Any, *, dtype: torch.dtype | None = None, **options: Any
) -> Any:
    """new_empty_strided(Tensor self, SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, …) -> Tensor"""
    return aten.empty_strided.default(size, stride, dtype=dtype or self.dtype, device=self.device)


@converts(aten.empty.memory_format, aten.empty_permuted.default, aten.empty_strided.default)
def empty(net: Net) -> ITensor:
    """empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, …) -> Tensor. Any values are right: zeros."""
    return shape.full(net, result_sizes(net), 0, result_of(net).dtype)


@converts(aten.scalar_tensor.default)
def scalar_tensor(net: Net, s: float) -> ITensor:
    """scalar_tensor(Scalar s, *, ScalarType? dtype=None, …) -> Tensor"""
    return as_result(net, base.tensor(net, s, result_of(net).dtype))


@converts(aten.arange.start_step, aten.arange.start, aten.arange.default)
def arange(net: Net, start: Size = 0, step: Size = 1) -> ITensor:
    """arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, …) -> Tensor"""
    (length,) = result_sizes(net)
    return shape.arange(net, start, step, length, result_of(net).dtype)


def without_chance(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """In training, dropout draws random numbers; only PyTorch draws the same ones as eager."""
    train, p = argument(node, "train"), argument(node, "p")
    return train is False or p == 0 or Rejection("in training, dropout draws random numbers", "call model.eval() first")


@converts(aten.native_dropout.default, validator=without_chance)
def native_dropout(net: Net, input: Value) -> tuple[ITensor | None, ...]:
    """native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)"""
    return input, shape.full(net, result_sizes(net), True, torch.bool)
