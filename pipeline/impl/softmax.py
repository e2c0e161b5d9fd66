"""Softmax and its logarithm, in float32 whatever the input is."""

from __future__ import annotations

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor
from pipeline.network.context import ConversionContext
from pipeline.trt import trt


def softmax(ctx: ConversionContext, name: str, x: ITensor, dim: int) -> ITensor:
    """``exp(x) / sum(exp(x))`` over a dim; a row of -inf gives NaN, as in eager. The result has ``x``'s dtype."""
    rank = base.rank(x)
    wide = base.raise_rank(ctx, name, base.cast(ctx, name, x, torch.float32), 2)  # TensorRT wants two dims or more
    layer = ctx.add(name, "softmax", wide)
    layer.axes = 1 << (base.axis(dim, max(rank, 1)) + base.rank(wide) - max(rank, 1))
    result = base.squeeze(ctx, name, layer.get_output(0), range(2 - rank))
    return base.cast(ctx, name, result, base.dtype_of(x))


def log_softmax(ctx: ConversionContext, name: str, x: ITensor, dim: int) -> ITensor:
    """``x - log(sum(exp(x)))`` over a dim, without overflow. The result has ``x``'s dtype."""
    rank = base.rank(x)
    wide = base.raise_rank(ctx, name, base.cast(ctx, name, x, torch.float32), 1)
    axes = base.axes_mask([dim], base.rank(wide))

    def over(operation: trt.ReduceOperation, value: ITensor) -> ITensor:
        return ctx.add(name, "reduce", value, operation, axes, True).get_output(0)

    shifted = base.elementwise(ctx, name, "SUB", wide, over(trt.ReduceOperation.MAX, wide))
    total = over(trt.ReduceOperation.SUM, base.unary(ctx, name, "EXP", shifted))
    result = base.elementwise(ctx, name, "SUB", shifted, base.unary(ctx, name, "LOG", total))
    return base.cast(ctx, name, base.squeeze(ctx, name, result, range(1 - rank)), base.dtype_of(x))
