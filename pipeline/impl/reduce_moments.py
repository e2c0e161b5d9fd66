"""Variance, norms and log-sum-exp, computed in float32 and rounded once."""

from __future__ import annotations

import math

import torch

from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.block_decorators import block
from pipeline.impl.elementwise import layer, where
from pipeline.impl.reduce import Dims, all_dims, extremum, reduce
from pipeline.impl.shape import product
from pipeline.impl.unary import absolute, widened
from pipeline.network.context import SymbolicInt
from pipeline.network.net import Net


@block
def variance(net: Net, x: Value, dim: Dims, correction: float, keepdim: bool) -> tuple[ITensor, ITensor]:
    """Return the variance over dims, with the sum divided by their size minus the correction, and the mean."""
    value, dims = widened(net, x), all_dims(dim, base.rank(x))
    mean = reduce(net, "AVG", value, dims, keepdim=True)
    centred = base.elementwise(net, "SUB", value, mean)
    square = base.elementwise(net, "PROD", centred, centred)
    total = reduce(net, "SUM", square, dims, keepdim)
    result = layer(net, "DIV", total, _degrees(net, x, dims, correction), torch.float32)
    return result, mean if keepdim or not dims else base.squeeze(net, mean, dims)


def _degrees(net: Net, x: Value, dims: tuple[int, ...], correction: float) -> Value:
    """Return the number of reduced elements minus the correction, at least 0."""
    sizes = [base.known_sizes(net, x)[d] for d in dims]
    if all(isinstance(s, int | SymbolicInt) for s in sizes):
        count: Value = product([s for s in sizes if s is not None])
    else:
        count = base.scalar_of(net, base.size(net, x, dims[0]))
        for d in dims[1:]:
            count = base.elementwise(net, "PROD", count, base.scalar_of(net, base.size(net, x, d)))
    if isinstance(count, int):
        return float(max(0, count - correction))
    less = layer(net, "SUB", base.tensor(net, count, torch.float32), float(correction), torch.float32)
    return layer(net, "MAX", less, 0.0, torch.float32)


@block
def vector_norm(net: Net, x: Value, order: float, dim: Dims, keepdim: bool) -> ITensor:
    """Return the norm of an order over dims: for infinite order the largest or smallest magnitude, for order 0 the
    number of nonzero elements."""
    value, dims = absolute(net, widened(net, x)), all_dims(dim, base.rank(x))
    if math.isinf(order):
        return extremum(net, "MAX" if order > 0 else "MIN", value, dims, keepdim)
    if order == 0:
        zero = layer(net, "EQUAL", value, 0.0, torch.float32)
        value = base.cast(net, base.unary(net, "NOT", zero), torch.float32)
    elif order == 2:
        value = base.elementwise(net, "PROD", value, value)
    elif order != 1:
        value = layer(net, "POW", value, order, torch.float32)
    total = reduce(net, "SUM", value, dims, keepdim)
    if order in (0, 1):
        return total
    return base.unary(net, "SQRT", total) if order == 2 else layer(net, "POW", total, 1 / order, torch.float32)


@block
def log_sum_exp(net: Net, x: Value, dim: Dims, keepdim: bool) -> ITensor:
    """``log(sum(exp(x)))`` without overflow: the largest element is factored out."""
    value, dims = widened(net, x), all_dims(dim, base.rank(x))
    largest = reduce(net, "MAX", value, dims, keepdim=True)
    largest = where(net, base.unary(net, "ISINF", largest), 0.0, largest)
    powers = base.unary(net, "EXP", base.elementwise(net, "SUB", value, largest))
    logarithm = base.unary(net, "LOG", reduce(net, "SUM", powers, dims, keepdim=True))
    result = base.elementwise(net, "SUM", logarithm, largest)
    return result if keepdim or not dims else base.squeeze(net, result, dims)
