"""Create tensors from sizes and numbers."""

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
    """Broadcast a constant of one element."""
    return base.expand(net, base.tensor(net, value, dtype), shape)


@block
def arange(net: Net, start: Value, step: Value, length: Size, dtype: torch.dtype) -> ITensor:
    """``start + i * step`` for each i below the length, computed in a dtype that LINSPACE has and cast."""
    other = torch.float32 if dtype.is_floating_point else torch.int32
    compute = dtype if dtype in (torch.int32, torch.int64) else other
    layer = net.add("fill", (1,), trt.FillOperation.LINSPACE, to_trt(compute))
    layer.set_input(0, base.size_tensor(net, length))
    layer.set_input(1, base.tensor(net, start, compute))
    layer.set_input(2, base.tensor(net, step, compute, rank=1))
    return base.cast(net, layer.get_output(0), dtype)
