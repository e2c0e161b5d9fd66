"""Add embeddings and embedding bags."""

from __future__ import annotations

import torch

from pipeline.impl import base
from pipeline.impl import elementwise as _elementwise
from pipeline.impl import reduce as _reduce
from pipeline.impl.base import ITensor, Net, Size, Value, block
from pipeline.impl.index import iota, take


@block
def embedding(net: Net, weight: Value, indices: Value) -> ITensor:
    """Return the rows of ``weight`` at ``indices``."""
    return take(net, base.tensor(net, weight), indices, 0)


MODES = ("sum", "mean", "max")
"""The modes of an embedding bag, indexed by eager's number for the mode."""


@block
def embedding_bag(
    net: Net,
    weight: Value,
    indices: Value,
    offsets: Value,
    bag_count: Size,
    mode: str,
    per_sample_weights: Value | None = None,
    ignored_index: int = -1,
) -> ITensor:
    """Reduce the rows of each bag (from its offset on) by ``mode``; skip ``ignored_index``; an empty bag gives zero."""
    dtype = base.dtype_of(weight)
    compute = dtype if mode == "max" else _elementwise.wide_dtype(dtype)
    row = base.cast(net, embedding(net, weight, indices), compute)
    if per_sample_weights is not None:
        row = _elementwise.binary(net, "PROD", row, _as_column(net, per_sample_weights), compute)
    member = _bag_membership_mask(net, indices, offsets, bag_count, ignored_index)
    neutral = _reduce.neutral_element("MAX", compute) if mode == "max" else 0.0  # not -0.0: eager adds to zeros
    selected = _elementwise.where(net, base.unsqueeze(net, member, [2]), row, neutral)
    if mode == "sum":
        return base.cast(net, _reduce.reduce(net, "SUM", selected, [1], False), dtype)
    count = _reduce.reduce(net, "SUM", base.cast(net, member, torch.int32), [1], True)
    if mode == "mean":
        divisor = base.cast(net, _elementwise.binary(net, "MAX", count, 1), compute)
        total = _reduce.reduce(net, "SUM", selected, [1], False)
        return base.cast(net, base.elementwise(net, "DIV", total, divisor), dtype)
    most = _reduce.extremum(net, "MAX", selected, [1], False)
    return _elementwise.where(net, _elementwise.compare(net, "GREATER", count, 0), most, 0, dtype)


def _as_column(net: Net, vector: Value) -> ITensor:
    return base.unsqueeze(net, base.tensor(net, vector), [1])


def _bag_membership_mask(net: Net, indices: Value, offsets: Value, bag_count: Size, ignored_index: int) -> ITensor:
    """Return a mask [bags, indices], True where a bag has the index: index i is in bag ``count(offsets <= i) - 1``."""
    index, start = base.tensor(net, indices), base.tensor(net, offsets)
    (count,) = base.known_sizes(net, index)
    place = base.unsqueeze(net, iota(net, [count], [1]), [0])
    started = _elementwise.compare_or_equal(net, "GREATER", place, _as_column(net, start))
    number = _reduce.reduce(net, "SUM", base.cast(net, started, torch.int64), [0], True)
    bag = iota(net, [bag_count, 1], [1, 0], 1)
    member = base.elementwise(net, "EQUAL", number, bag)
    if ignored_index < 0:
        return member
    counts = _elementwise.not_equal(net, base.unsqueeze(net, index, [0]), ignored_index)
    return base.elementwise(net, "AND", member, counts)
