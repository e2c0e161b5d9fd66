"""Calls of pooling."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from pipeline.aten.types import Target
from pipeline.testing.calls import Call, TensorSpec
from pipeline.testing.strategies.common import Draw, calls, floats, named, spatial_rank, tensors

aten = torch.ops.aten


def _lists(draw: Draw, low: int, high: int, rank: int) -> list[int]:
    return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))


def _input(draw: Draw, rank: int, values: object = "normal") -> TensorSpec:
    leading = [2] * draw(st.sampled_from((2, 2, 1)))
    return draw(tensors([*leading, *_lists(draw, 5, 7, rank)], draw(floats), values))


def _windows(draw: Draw, rank: int) -> tuple[list[int], list[int], list[int]]:
    kernel = _lists(draw, 1, 4, rank)
    stride = draw(st.just([]) | st.just(_lists(draw, 1, 3, rank)))
    return kernel, stride, [draw(st.integers(0, k // 2)) for k in kernel]


def _dynamic(draw: Draw, call: Call, rank: int) -> Call:
    """Draw names for sizes: the batch may always be dynamic, the pooled dims mostly, except that of ``max_pool1d``,
    which tracing fixes."""
    pooled = range(-rank, 0) if call.target is not aten.max_pool1d.default and draw(st.booleans()) else ()
    return draw(named(call, {0: [0, *pooled]}, least=5))


@calls(
    aten.max_pool1d.default,
    aten.max_pool2d.default,
    aten.max_pool3d.default,
    aten.max_pool2d_with_indices.default,
    aten.max_pool3d_with_indices.default,
)
def max_pool(draw: Draw, target: Target) -> Call:
    rank = spatial_rank(target)
    values = draw(st.sampled_from(("normal", "small", "special")))
    x, windows = _input(draw, rank, values), _windows(draw, rank)
    dilation, ceil_mode = draw(st.sampled_from((1, 1, 2))), draw(st.sampled_from((False, False, True)))
    outputs = draw(st.sampled_from((None, (0,)))) if len(target._schema.returns) == 2 else None
    call = Call(target, (x, *windows, [dilation] * rank, ceil_mode), outputs=outputs)
    return _dynamic(draw, call, rank)


@calls(aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default)
def avg_pool(draw: Draw, target: object) -> Call:
    rank = spatial_rank(target)
    ceil_mode, count_include_pad = draw(st.sampled_from((False, False, True))), draw(st.booleans())
    divisor = [draw(st.sampled_from((None, 3)))] if rank > 1 else []
    arguments = (_input(draw, rank), *_windows(draw, rank), ceil_mode, count_include_pad, *divisor)
    return _dynamic(draw, Call(target, arguments), rank)


@calls(
    aten.adaptive_avg_pool1d.default,
    aten.adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool3d.default,
    aten._adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool3d.default,
    aten.adaptive_max_pool1d.default,
    aten.adaptive_max_pool2d.default,
    aten.adaptive_max_pool3d.default,
)
def adaptive_pool(draw: Draw, target: Target) -> Call:
    rank = spatial_rank(target)
    size = draw(st.just([1] * rank) | st.just(_lists(draw, 1, 6, rank)))
    is_max = "max" in str(target)
    values = draw(st.sampled_from(("normal", "small", *(["special"] if is_max else []))))
    outputs = draw(st.sampled_from((None, (0,)))) if len(target._schema.returns) == 2 else None
    return _dynamic(draw, Call(target, (_input(draw, rank, values), size), outputs=outputs), rank)


STRATEGIES = {**max_pool, **avg_pool, **adaptive_pool}
