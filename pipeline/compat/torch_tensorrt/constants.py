"""Keep views of parameters refittable: layers transpose the parameter, instead of a copy of it."""

from __future__ import annotations

import torch

from pipeline.aten.types import Argument
from pipeline.impl import base
from pipeline.network.context import ConversionContext


def of_parameter(ctx: ConversionContext, name: str, value: torch.Tensor) -> Argument:
    """Express a transposed view of a constant as layers over that constant; any other tensor unchanged."""
    constant = None if ctx.constant_at(value) is not None else ctx.constant_below(value)
    order = sorted(range(value.dim()), key=value.stride, reverse=True)
    if constant is None or not value.permute(order).is_contiguous():
        return value
    rows = base.reshape(ctx, name, base.tensor(ctx, name, constant), tuple(value.shape[dim] for dim in order))
    return base.permute(ctx, name, rows, [order.index(dim) for dim in range(value.dim())])
