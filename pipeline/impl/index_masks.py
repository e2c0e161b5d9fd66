"""Masks: triangles, and elements that take the place of what a mask picks."""

from __future__ import annotations

import math

import numpy as np
import torch

from pipeline.impl import base
from pipeline.impl import elementwise as _elementwise
from pipeline.impl.base import ITensor, Value
from pipeline.impl.index import iota, take
from pipeline.impl.shape import bounds_of, concatenate, product
from pipeline.network.context import ConversionContext
from pipeline.trt import trt

CONSTANT = 1 << 16
"""A mask of up to this many elements is a constant; a larger one is computed."""


def triangle(ctx: ConversionContext, name: str, x: ITensor, diagonal: int, lower: bool) -> ITensor:
    """``x`` on one side of a diagonal of its last two dims, which counts, and zero on the other."""
    sizes = base.known_sizes(ctx, x)[-2:]
    if all(isinstance(s, int) for s in sizes) and math.prod(sizes) <= CONSTANT:
        ones = torch.ones(tuple(sizes), dtype=torch.bool)
        mask = base.constant(ctx, name, ones.tril(diagonal) if lower else ones.triu(diagonal))
    else:
        offset = iota(ctx, name, sizes, [-1, 1])
        bound = diagonal + 1 if lower else diagonal - 1
        mask = _elementwise.compare(ctx, name, "LESS" if lower else "GREATER", offset, bound)
    return _elementwise.where(ctx, name, mask, x, 0, base.dtype_of(x))


def masked_scatter(ctx: ConversionContext, name: str, x: ITensor, mask: Value, source: Value) -> ITensor:
    """``x`` with the elements of ``source``, in order, where the mask holds; a mask holds nowhere if there are none."""
    if 0 in base.dims(source):
        return x
    mask = base.expand(ctx, name, base.tensor(ctx, name, mask), base.known_sizes(ctx, x))
    return _elementwise.where(ctx, name, mask, taken(ctx, name, mask, source), x, base.dtype_of(x))


def taken(ctx: ConversionContext, name: str, mask: ITensor, source: Value) -> ITensor:
    """Where the mask holds, the elements of ``source`` in order: how many hold so far says which. Elsewhere, any."""
    sizes = base.known_sizes(ctx, mask)
    length = product(base.known_sizes(ctx, source))
    row = base.reshape(ctx, name, base.tensor(ctx, name, source), [length])
    if not isinstance(length, int) and bounds_of(ctx, length.expr)[0] < 1:
        more = torch.zeros(1, dtype=base.dtype_of(row))  # there may be none to take
        row = concatenate(ctx, name, [row, more], 0, base.dtype_of(row))
    picked = base.reshape(ctx, name, mask, [product(sizes)])
    dim = base.constant(ctx, name, np.array(0, dtype=np.int64))
    picked = base.cast(ctx, name, picked, torch.int32)
    layer = ctx.add(name, "cumulative", picked, dim, trt.CumulativeOperation.SUM, False, False)
    count = layer.get_output(0)
    place = _elementwise.binary(ctx, name, "MAX", _elementwise.binary(ctx, name, "SUB", count, 1), 0)
    return base.reshape(ctx, name, take(ctx, name, row, place, 0), sizes)


def one_hot(ctx: ConversionContext, name: str, index: Value, classes: int) -> ITensor:
    """1 where the new last dim's place is the index, else 0."""
    values = base.constant(ctx, name, np.array([0, 1], dtype=np.int64))
    depth = base.constant(ctx, name, np.array(classes, dtype=np.int64))
    return ctx.add(name, "one_hot", base.tensor(ctx, name, index), values, depth, -1).get_output(0)
