"""Tensors made from sizes and numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Size, Value
from pipeline.impl.block_decorators import block
from pipeline.network.net import Net
from pipeline.trt import to_trt, trt


@block
def full(net: Net, shape: Sequence[Size], value: Value, dtype: torch.dtype) -> ITensor:
    """A tensor of one value: a constant of one element, broadcast."""
    return base.expand(net, base.tensor(net, value, dtype), shape)


@block
def arange(net: Net, start: Value, step: Value, length: Size, dtype: torch.dtype) -> ITensor:
    """``start + i * step`` for each i below the length; halves and bytes are cast from float32 and int32."""
    compute = _filled(dtype)
    layer = net.add("fill", (1,), trt.FillOperation.LINSPACE, to_trt(compute))
    layer.set_input(0, base.size_tensor(net, length))
    layer.set_input(1, base.tensor(net, start, compute))
    layer.set_input(2, base.tensor(net, step, compute, rank=1))
    return base.cast(net, layer.get_output(0), dtype)


def _filled(dtype: torch.dtype) -> torch.dtype:
    """LINSPACE gives float32, int32 and int64."""
    if dtype.is_floating_point:
        return torch.float32
    return dtype if dtype in (torch.int32, torch.int64) else torch.int32
