"""Convert operators that create tensors from sizes and numbers."""

from __future__ import annotations

from typing import Any

import torch

from pipeline.aten.arguments import argument
from pipeline.converters.binding import CompilationSettings, Rejection, aten, cast_to_result, converts, fake_result
from pipeline.converters.decompositions import register_torch_trt_decomposition
from pipeline.impl import base, shape
from pipeline.impl.base import ITensor, Net, Size, Value
from pipeline.impl.shape import result_sizes


@converts(aten.full.default)
def full(net: Net, fill_value: Value) -> ITensor:
    """full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, …) -> Tensor"""
    return shape.full(net, result_sizes(net), fill_value, fake_result(net).dtype)


LIKE = {
    aten.full_like.default: aten.full.default,
    aten.fill.Scalar: aten.full.default,
    aten.empty_like.default: aten.empty.memory_format,
}
NEW = {
    aten.new_full.default: aten.full.default,
    aten.new_empty.default: aten.empty.memory_format,
    aten.new_empty_strided.default: aten.empty_strided.default,
}
UNUSED = frozenset({"layout", "device", "pin_memory", "memory_format"})
"""Names of arguments that do not affect the results of creation operators in an engine."""


def _decompose_creation_like(like_operator: Any, create: Any) -> Any:
    """Declare the decomposition of an operator such as ``ones_like`` to ``create`` (``ones``), and return it."""

    @register_torch_trt_decomposition(like_operator)
    def decompose(self: torch.Tensor, *args: Any, dtype: torch.dtype | None = None, **options: Any) -> Any:
        size = (self.shape,) if like_operator in LIKE else ()
        given = {name: value for name, value in options.items() if name not in UNUSED}
        return create(*size, *args, **given, dtype=dtype or self.dtype, device=self.device)

    return decompose


DECOMPOSITIONS = [_decompose_creation_like(*row) for row in (LIKE | NEW).items()]


@register_torch_trt_decomposition(aten.fill.Tensor)
def fill(self: torch.Tensor, value: torch.Tensor) -> Any:
    value = value if value.dtype == self.dtype else value.to(self.dtype)
    return value.expand(self.shape) if self.dim() else value.clone()


@converts(aten.empty.memory_format, aten.empty_permuted.default, aten.empty_strided.default)
def empty(net: Net) -> ITensor:
    """empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, …) -> Tensor. The elements are zero."""
    return shape.full(net, result_sizes(net), 0, fake_result(net).dtype)


@converts(aten.scalar_tensor.default)
def scalar_tensor(net: Net, s: float) -> ITensor:
    """scalar_tensor(Scalar s, *, ScalarType? dtype=None, …) -> Tensor"""
    return cast_to_result(net, base.tensor(net, s, fake_result(net).dtype))


@converts(aten.arange.start_step, aten.arange.start, aten.arange.default)
def arange(net: Net, start: Size = 0, step: Size = 1) -> ITensor:
    """arange.start_step(Scalar start, Scalar end, Scalar step=1, *, …) -> Tensor. The length is the fake result's."""
    (length,) = result_sizes(net)
    return shape.arange(net, start, step, length, fake_result(net).dtype)


def check_dropout(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Dropout must be off (train=False or p=0), since only PyTorch draws the same random numbers as eager."""
    train, p = argument(node, "train"), argument(node, "p")
    return train is False or p == 0 or Rejection("dropout is on, which needs PyTorch's RNG", "call model.eval() first")


@converts(aten.native_dropout.default, validator=check_dropout)
def native_dropout(net: Net, input: Value) -> tuple[ITensor | None, ...]:
    """native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)"""
    return input, shape.full(net, result_sizes(net), True, torch.bool)
