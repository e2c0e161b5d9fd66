"""Functions of one tensor."""

from __future__ import annotations

import torch

from pipeline.converters.context import ConversionContext
from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.elementwise import arithmetic, wide


def floating(ctx: ConversionContext, name: str, x: Value) -> ITensor:
    """``x`` as floats: integers and bools as float32."""
    dtype = base.dtype_of(x)
    return base.tensor(ctx, name, x, dtype if dtype.is_floating_point else torch.float32)


def real(ctx: ConversionContext, name: str, operation: str, x: Value) -> ITensor:
    """A function of real numbers; of integers it is a float."""
    return base.unary(ctx, name, operation, floating(ctx, name, x))


def signed(ctx: ConversionContext, name: str, operation: str, x: Value) -> ITensor:
    """``ABS``, ``NEG`` or ``SIGN``, of integers as well."""
    dtype = base.dtype_of(x)
    result = base.unary(ctx, name, operation, base.tensor(ctx, name, x, arithmetic(dtype)))
    return base.cast(ctx, name, result, dtype)


def rounded(ctx: ConversionContext, name: str, operation: str, x: Value) -> ITensor:
    """``FLOOR``, ``CEIL`` or ``ROUND`` (halves to even); integers are what they are."""
    x = base.tensor(ctx, name, x)
    return base.unary(ctx, name, operation, x) if base.dtype_of(x).is_floating_point else x


def rsqrt(ctx: ConversionContext, name: str, x: Value) -> ITensor:
    """``1 / sqrt(x)``, in float32 for halves, rounded once."""
    x = floating(ctx, name, x)
    dtype = base.dtype_of(x)
    root = base.unary(ctx, name, "SQRT", base.cast(ctx, name, x, wide(dtype)))
    return base.cast(ctx, name, base.unary(ctx, name, "RECIP", root), dtype)
