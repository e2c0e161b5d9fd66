"""Masks: triangles, and elements that replace those that a mask selects."""

from __future__ import annotations

import math

import numpy as np
import torch

from pipeline.impl import base
from pipeline.impl import elementwise as _elementwise
from pipeline.impl.base import ITensor, Value
from pipeline.impl.blocks import block
from pipeline.impl.index import iota, take
from pipeline.impl.shape import bounds_of, concatenate, product
from pipeline.network.net import Net
from pipeline.trt import trt

CONSTANT = 1 << 16
"""A mask of up to this many elements is a constant; a larger one is computed."""


@block
def triangle(net: Net, x: ITensor, diagonal: int, lower: bool) -> ITensor:
    """``x`` on one side of a diagonal of its last two dims (including it), and zero on the other."""
    sizes = base.known_sizes(net, x)[-2:]
    if all(isinstance(s, int) for s in sizes) and math.prod(sizes) <= CONSTANT:
        ones = torch.ones(tuple(sizes), dtype=torch.bool)
        mask = base.constant(net, ones.tril(diagonal) if lower else ones.triu(diagonal))
    else:
        offset = iota(net, sizes, [-1, 1])
        bound = diagonal + 1 if lower else diagonal - 1
        mask = _elementwise.compare(net, "LESS" if lower else "GREATER", offset, bound)
    return _elementwise.where(net, mask, x, 0, base.dtype_of(x))


@block
def masked_scatter(net: Net, x: ITensor, mask: Value, source: Value) -> ITensor:
    """``x`` with the elements of ``source``, in order, where the mask holds; an empty mask holds nowhere."""
    if 0 in base.dims(source):
        return x
    mask = base.expand(net, base.tensor(net, mask), base.known_sizes(net, x))
    return _elementwise.where(net, mask, taken(net, mask, source), x, base.dtype_of(x))


@block
def taken(net: Net, mask: ITensor, source: Value) -> ITensor:
    """The elements of ``source`` in order where the mask holds (a running count gives the index); any values
    elsewhere."""
    sizes = base.known_sizes(net, mask)
    length = product(base.known_sizes(net, source))
    row = base.reshape(net, base.tensor(net, source), [length])
    if not isinstance(length, int) and bounds_of(net, length.expr)[0] < 1:
        more = torch.zeros(1, dtype=base.dtype_of(row))  # there may be none to take
        row = concatenate(net, [row, more], 0, base.dtype_of(row))
    picked = base.reshape(net, mask, [product(sizes)])
    dim = base.constant(net, np.array(0, dtype=np.int64))
    picked = base.cast(net, picked, torch.int32)
    layer = net.add("cumulative", picked, dim, trt.CumulativeOperation.SUM, False, False)
    count = layer.get_output(0)
    place = _elementwise.binary(net, "MAX", _elementwise.binary(net, "SUB", count, 1), 0)
    return base.reshape(net, take(net, row, place, 0), sizes)


@block
def one_hot(net: Net, index: Value, classes: int) -> ITensor:
    """1 where the position in the new last dim equals the index, else 0."""
    values = base.constant(net, np.array([0, 1], dtype=np.int64))
    depth = base.constant(net, np.array(classes, dtype=np.int64))
    return net.add("one_hot", base.tensor(net, index), values, depth, -1).get_output(0)
