"""Elementwise layers on two or more tensors, with eager's promotion and broadcasting."""

from __future__ import annotations

import torch

from pipeline.converters.context import ConversionContext
from pipeline.impl import base
from pipeline.impl.base import ITensor, Value


def promoted(
    ctx: ConversionContext, name: str, *values: Value, dtype: torch.dtype | None = None
) -> tuple[ITensor, ...]:
    """The values as tensors of eager's common dtype (or ``dtype``) and of one rank."""
    dtype, rank = dtype or base.result_type(*values), max(map(base.rank, values))
    return tuple(base.tensor(ctx, name, v, dtype, rank=rank) for v in values)


def binary(
    ctx: ConversionContext, name: str, operation: str, a: Value, b: Value, dtype: torch.dtype | None = None
) -> ITensor:
    """``a operation b``, broadcast, in eager's common dtype unless ``dtype`` names another. ``operation`` is a name of
    ``trt.ElementWiseOperation``."""
    x, y = promoted(ctx, name, a, b, dtype=dtype)
    return base.elementwise(ctx, name, operation, x, y)


def compare(ctx: ConversionContext, name: str, operation: str, a: Value, b: Value) -> ITensor:
    """``EQUAL``, ``LESS`` or ``GREATER`` of two values: a bool tensor. Bools compare as integers."""
    dtype = base.result_type(a, b)
    return binary(ctx, name, operation, a, b, torch.int32 if dtype == torch.bool else dtype)


def logical_not(ctx: ConversionContext, name: str, x: ITensor) -> ITensor:
    """``not x`` of a bool tensor."""
    return base.unary(ctx, name, "NOT", x)


def where(ctx: ConversionContext, name: str, condition: Value, a: Value, b: Value) -> ITensor:
    """``a`` where the condition holds, else ``b``; broadcast, in eager's common dtype."""
    dtype, rank = base.result_type(a, b), max(map(base.rank, (condition, a, b)))
    c = base.tensor(ctx, name, condition, torch.bool, rank=rank)
    x, y = (base.tensor(ctx, name, v, dtype, rank=rank) for v in (a, b))
    return ctx.add(name, "select", c, x, y).get_output(0)
