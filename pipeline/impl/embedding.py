"""Rows of a table."""

from __future__ import annotations

import torch

from pipeline.impl import base
from pipeline.impl import elementwise as _elementwise
from pipeline.impl import reduce as _reduce
from pipeline.impl.base import ITensor, Size, Value
from pipeline.impl.index import iota, take
from pipeline.impl.scatter import neutral
from pipeline.network.context import ConversionContext


def embedding(ctx: ConversionContext, name: str, weight: Value, indices: Value) -> ITensor:
    """The rows of ``weight`` that ``indices`` name."""
    return take(ctx, name, base.tensor(ctx, name, weight), indices, 0)


MODES = ("sum", "mean", "max")
"""What eager's numbers for the mode of an embedding bag stand for."""


def embedding_bag(
    ctx: ConversionContext,
    name: str,
    weight: Value,
    indices: Value,
    offsets: Value,
    bags: Size,
    mode: str,
    scale: Value | None = None,
    padding: int = -1,
) -> ITensor:
    """For each bag, the sum, mean or maximum of the rows that its indices name; bag ``b`` starts at ``offsets[b]``. An
    index that is ``padding`` does not count; a bag without indices is zero."""
    dtype = base.dtype_of(weight)
    compute = dtype if mode == "max" else _elementwise.wide(dtype)
    row = base.cast(ctx, name, embedding(ctx, name, weight, indices), compute)
    if scale is not None:
        row = _elementwise.binary(ctx, name, "PROD", row, _column(ctx, name, scale), compute)
    member = _members(ctx, name, indices, offsets, bags, padding)
    nothing = neutral("amax", compute) if mode == "max" else 0.0  # not -0.0: eager adds to zeros
    there = _elementwise.where(ctx, name, base.unsqueeze(ctx, name, member, [2]), row, nothing)
    if mode == "sum":
        return base.cast(ctx, name, _reduce.reduce(ctx, name, "SUM", there, [1], False), dtype)
    count = _reduce.reduce(ctx, name, "SUM", base.cast(ctx, name, member, torch.int32), [1], True)
    if mode == "mean":
        divisor = base.cast(ctx, name, _elementwise.binary(ctx, name, "MAX", count, 1), compute)
        total = _reduce.reduce(ctx, name, "SUM", there, [1], False)
        return base.cast(ctx, name, base.elementwise(ctx, name, "DIV", total, divisor), dtype)
    most = _reduce.extremum(ctx, name, "MAX", there, [1], False)
    return _elementwise.where(ctx, name, _elementwise.compare(ctx, name, "GREATER", count, 0), most, 0, dtype)


def _column(ctx: ConversionContext, name: str, vector: Value) -> ITensor:
    return base.unsqueeze(ctx, name, base.tensor(ctx, name, vector), [1])


def _members(ctx: ConversionContext, name: str, indices: Value, offsets: Value, bags: Size, padding: int) -> ITensor:
    """Whether an index (along dim 1) is in a bag (along dim 0): as many bags have started as come up to this one."""
    index, start = base.tensor(ctx, name, indices), base.tensor(ctx, name, offsets)
    (count,) = base.known_sizes(ctx, index)
    place = base.unsqueeze(ctx, name, iota(ctx, name, [count], [1]), [0])
    started = _elementwise.compare_or_equal(ctx, name, "GREATER", place, _column(ctx, name, start))
    number = _reduce.reduce(ctx, name, "SUM", base.cast(ctx, name, started, torch.int64), [0], True)
    bag = iota(ctx, name, [bags, 1], [1, 0], 1)
    member = base.elementwise(ctx, name, "EQUAL", number, bag)
    if padding < 0:
        return member
    counts = _elementwise.not_equal(ctx, name, base.unsqueeze(ctx, name, index, [0]), padding)
    return base.elementwise(ctx, name, "AND", member, counts)
