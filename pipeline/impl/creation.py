"""Tensors made from sizes and numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Size, Value
from pipeline.network.context import ConversionContext
from pipeline.trt import to_trt, trt


def full(ctx: ConversionContext, name: str, shape: Sequence[Size], value: Value, dtype: torch.dtype) -> ITensor:
    """A tensor of one value: a constant of one element, broadcast."""
    return base.expand(ctx, name, base.tensor(ctx, name, value, dtype), shape)


def arange(ctx: ConversionContext, name: str, start: Value, step: Value, length: Size, dtype: torch.dtype) -> ITensor:
    """``start + i * step`` for each i below the length; halves and bytes are cast from float32 and int32."""
    compute = _filled(dtype)
    layer = ctx.add(name, "fill", (1,), trt.FillOperation.LINSPACE, to_trt(compute))
    layer.set_input(0, base.size_tensor(ctx, name, length))
    layer.set_input(1, base.tensor(ctx, name, start, compute))
    layer.set_input(2, base.tensor(ctx, name, step, compute, rank=1))
    return base.cast(ctx, name, layer.get_output(0), dtype)


def _filled(dtype: torch.dtype) -> torch.dtype:
    """LINSPACE gives float32, int32 and int64."""
    if dtype.is_floating_point:
        return torch.float32
    return dtype if dtype in (torch.int32, torch.int64) else torch.int32
