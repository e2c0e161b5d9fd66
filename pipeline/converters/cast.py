"""Casts, and operators that give their argument back: memory, storage and autograd mean nothing in an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from pipeline.converters.decompositions import register_torch_trt_decomposition
from pipeline.converters.results import as_result, converts, result_of
from pipeline.impl import base
from pipeline.network.context import ConversionContext

aten = torch.ops.aten
prims = torch.ops.prims

Args = Sequence[Any]
Kwargs = Mapping[str, Any]


def _converted(ctx: ConversionContext, name: str, x: Any) -> Any:
    """``x`` in the dtype of the node's result; bytes stay as they are."""
    value = base.tensor(ctx, name, x)
    if result_of(ctx).dtype == torch.uint8 and _is_byte(ctx):
        return value
    return as_result(ctx, name, value)


def _is_byte(ctx: ConversionContext) -> bool:
    """Whether what the node copies is of bytes already."""
    assert ctx.node is not None
    given: torch.Tensor = ctx.node.all_input_nodes[-1].meta["val"]
    return given.dtype == torch.uint8


@converts(aten._to_copy.default, prims.convert_element_type.default)
def _to_copy(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """_to_copy(Tensor self, *, ScalarType? dtype=None, …, MemoryFormat? memory_format=None) -> Tensor"""
    return _converted(ctx, name, args[0])


@converts(
    aten.alias.default,
    aten.alias_copy.default,
    aten.clone.default,
    aten.detach.default,
    aten.detach_copy.default,
    aten.lift.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
)
def identity(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor"""
    return args[0]


@register_torch_trt_decomposition(aten.copy.default)
def copy(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> Any:
    """copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor

    Nothing is read of what is overwritten but its shape, so that it is no input of an engine."""
    value = src if src.dtype == self.dtype else src.to(self.dtype)
    return value if statically_known_true(sym_eq(value.shape, self.shape)) else value.expand(self.shape)
