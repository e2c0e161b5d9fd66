"""Softmax and log-softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.aten.arguments import bind
from pipeline.converters.results import converts
from pipeline.impl import base
from pipeline.impl import softmax as impl
from pipeline.network.context import ConversionContext

aten = torch.ops.aten

SOFTMAX = {
    aten._softmax.default: impl.softmax,
    aten.softmax.int: impl.softmax,
    aten._log_softmax.default: impl.log_softmax,
    aten.log_softmax.int: impl.log_softmax,
}


@converts(*SOFTMAX)
def softmax(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor;
    _softmax(Tensor self, int dim, bool half_to_float) -> Tensor"""
    x, dim, option = bind(target, args, kwargs)
    dtype = {True: torch.float32, False: None}.get(option, option)
    if dtype == torch.float64:
        dtype = torch.float32
    return SOFTMAX[target](ctx, name, base.tensor(ctx, name, x, dtype), dim)
