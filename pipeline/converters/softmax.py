"""Convert softmax and log-softmax."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pipeline.converters.binding import converts
from pipeline.impl import base
from pipeline.impl import softmax as impl
from pipeline.impl.base import ITensor, Value
from pipeline.network.net import Net

aten = torch.ops.aten

Softmax = Callable[[Net, ITensor, int], ITensor]

SOFTMAX = {
    aten._softmax.default: impl.softmax,
    aten.softmax.int: impl.softmax,
    aten._log_softmax.default: impl.log_softmax,
    aten.log_softmax.int: impl.log_softmax,
}


@converts(SOFTMAX)
def softmax(
    net: Net, block: Softmax, input: Value, dim: int, dtype: torch.dtype | None = None, half_to_float: bool = False
) -> ITensor:
    """softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor;
    _softmax(Tensor self, int dim, bool half_to_float) -> Tensor"""
    dtype = torch.float32 if half_to_float or dtype == torch.float64 else dtype
    return block(net, base.tensor(net, input, dtype), dim)
