"""Reductions of several layers: variance, norms, logarithms of sums. They are computed in float32 and rounded once."""

from __future__ import annotations

import math

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.elementwise import layer, where
from pipeline.impl.reduce import Dims, all_dims, extremum, reduce
from pipeline.impl.shape import product
from pipeline.impl.unary import absolute, widened
from pipeline.network.context import ConversionContext, SymbolicInt


def variance(
    ctx: ConversionContext, name: str, x: Value, dim: Dims, correction: float, keepdim: bool
) -> tuple[ITensor, ITensor]:
    """The variance over dims, divided by their size less the correction, and the mean."""
    value, dims = widened(ctx, name, x), all_dims(dim, base.rank(x))
    mean = reduce(ctx, name, "AVG", value, dims, keepdim=True)
    centred = base.elementwise(ctx, name, "SUB", value, mean)
    square = base.elementwise(ctx, name, "PROD", centred, centred)
    total = reduce(ctx, name, "SUM", square, dims, keepdim)
    result = layer(ctx, name, "DIV", total, _degrees(ctx, name, x, dims, correction), torch.float32)
    return result, mean if keepdim or not dims else base.squeeze(ctx, name, mean, dims)


def _degrees(ctx: ConversionContext, name: str, x: Value, dims: tuple[int, ...], correction: float) -> Value:
    """How many elements are reduced less the correction, at least 0."""
    sizes = [base.known_sizes(ctx, x)[d] for d in dims]
    if all(isinstance(s, int | SymbolicInt) for s in sizes):
        count: Value = product([s for s in sizes if s is not None])
    else:
        count = base.scalar_of(ctx, name, base.size(ctx, name, x, dims[0]))
        for d in dims[1:]:
            count = base.elementwise(ctx, name, "PROD", count, base.scalar_of(ctx, name, base.size(ctx, name, x, d)))
    if isinstance(count, int):
        return float(max(0, count - correction))
    less = layer(ctx, name, "SUB", base.tensor(ctx, name, count, torch.float32), float(correction), torch.float32)
    return layer(ctx, name, "MAX", less, 0.0, torch.float32)


def vector_norm(ctx: ConversionContext, name: str, x: Value, order: float, dim: Dims, keepdim: bool) -> ITensor:
    """The norm of an order over dims; of infinite order the largest or smallest, of order 0 how many are not zero."""
    value, dims = absolute(ctx, name, widened(ctx, name, x)), all_dims(dim, base.rank(x))
    if math.isinf(order):
        return extremum(ctx, name, "MAX" if order > 0 else "MIN", value, dims, keepdim)
    if order == 0:
        zero = layer(ctx, name, "EQUAL", value, 0.0, torch.float32)
        value = base.cast(ctx, name, base.unary(ctx, name, "NOT", zero), torch.float32)
    elif order == 2:
        value = base.elementwise(ctx, name, "PROD", value, value)
    elif order != 1:
        value = layer(ctx, name, "POW", value, order, torch.float32)
    total = reduce(ctx, name, "SUM", value, dims, keepdim)
    if order in (0, 1):
        return total
    return (
        base.unary(ctx, name, "SQRT", total) if order == 2 else layer(ctx, name, "POW", total, 1 / order, torch.float32)
    )


def log_sum_exp(ctx: ConversionContext, name: str, x: Value, dim: Dims, keepdim: bool) -> ITensor:
    """``log(sum(exp(x)))``, the largest element taken out of it, so that nothing overflows."""
    value, dims = widened(ctx, name, x), all_dims(dim, base.rank(x))
    largest = reduce(ctx, name, "MAX", value, dims, keepdim=True)
    largest = where(ctx, name, base.unary(ctx, name, "ISINF", largest), 0.0, largest)
    powers = base.unary(ctx, name, "EXP", base.elementwise(ctx, name, "SUB", value, largest))
    logarithm = base.unary(ctx, name, "LOG", reduce(ctx, name, "SUM", powers, dims, keepdim=True))
    result = base.elementwise(ctx, name, "SUM", logarithm, largest)
    return result if keepdim or not dims else base.squeeze(ctx, name, result, dims)
