"""Casts, and operators that give their argument back: memory, storage and autograd mean nothing in an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.aten.arguments import bind
from pipeline.converters.results import as_result, converts, result_of
from pipeline.impl import base
from pipeline.impl.shape import result_sizes
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


@converts(aten.copy.default)
def copy(ctx: ConversionContext, target: Any, args: Args, kwargs: Kwargs, name: str) -> Any:
    """copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor"""
    _, src, _ = bind(target, args, kwargs)
    return base.expand(ctx, name, _converted(ctx, name, src), result_sizes(ctx))
