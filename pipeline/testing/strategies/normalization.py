"""Random calls of normalization operators."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st

from pipeline.aten.types import Leaf, aten
from pipeline.testing.calls import Call, Size
from pipeline.testing.strategies.common import Draw, floats, name_sizes, shapes, strategy, tensors

epsilons = st.sampled_from((1e-5, 1e-3, 1e-6))


def _values_to_normalize(count: int) -> st.SearchStrategy[str]:
    """Return a strategy of kinds of values to normalize: if there are few values, they differ clearly, since rounding
    would otherwise decide the variance."""
    return st.sampled_from(("distinct", "normal", "large", "positive") if count >= 8 else ("distinct",))


def _draw_affine(draw: Draw, shape: Any, dtype: torch.dtype) -> list[Leaf]:
    """Generate a weight and a bias, or one of them, or neither; they are mostly constants."""
    constant = draw(st.sampled_from((True, True, False)))
    return [draw(st.none() | tensors(shape, dtype, "positive", constant)) for _ in range(2)]


requested_outputs = st.sampled_from((None, (0,)))
"""The results that a call of an operator with several requests (`Call.outputs`): all, or only the first."""


@strategy(aten.layer_norm.default, aten.native_layer_norm.default, aten.rms_norm.default)
def draw_layer_norm(draw: Draw, target: object) -> Call:
    shape, dtype, rms = draw(shapes(1, 5, with_zero=False)), draw(floats), target is aten.rms_norm.default
    normalized = shape[draw(st.integers(0, len(shape) - 1)) :]
    x = draw(tensors(shape, dtype, "normal" if rms else _values_to_normalize(math.prod(normalized))))
    affine = _draw_affine(draw, normalized, dtype)[: 1 if rms else 2]
    epsilon = draw(st.none() | epsilons if rms else epsilons)
    outputs = draw(requested_outputs) if target is aten.native_layer_norm.default else None
    call = Call(target, (x, list(normalized), *affine, epsilon), outputs=outputs)
    return draw(name_sizes(call, {0: range(len(shape) - len(normalized))}))


def _draw_batch_shape(draw: Draw, groups: int, least_rank: int = 0) -> tuple[int, ...]:
    """Generate a shape: a batch of at least 2, a multiple of ``groups`` channels, ``least_rank`` to 3 spatial dims."""
    spatial = draw(st.lists(st.integers(2, 4), min_size=least_rank, max_size=3))
    return (draw(st.integers(2, 3)), groups * draw(st.integers(1, 3)), *spatial)


@strategy(aten.group_norm.default)
def draw_group_norm(draw: Draw, target: object) -> Call:
    groups, dtype = draw(st.integers(1, 3)), draw(floats)
    shape = _draw_batch_shape(draw, groups)
    x = draw(tensors(shape, dtype, _values_to_normalize(math.prod(shape[1:]) // groups)))
    call = Call(target, (x, groups, *_draw_affine(draw, shape[1:2], dtype), draw(epsilons)))
    dims, least = draw(st.sampled_from((([0, *range(2, len(shape))], 2), ([0], 0))))
    return draw(name_sizes(call, {0: dims}, least=least))


@strategy(aten.native_group_norm.default)
def draw_native_group_norm(draw: Draw, target: object) -> Call:
    groups, dtype = draw(st.integers(1, 3)), draw(floats)
    n, c, *spatial = _draw_batch_shape(draw, groups, 1)
    area = math.prod(spatial[1:])
    x = draw(tensors(("n", c, "m", *spatial[1:]), dtype, _values_to_normalize(2 * area * c // groups)))
    arguments = (x, *_draw_affine(draw, (c,), dtype), Size("n"), c, Size("m", area), groups, draw(epsilons))
    rows = (draw(st.sampled_from((0, 1, n))), n, n)
    return Call(target, arguments, sizes={"n": rows, "m": (2, spatial[0], 8)}, outputs=draw(requested_outputs))


@strategy(aten._native_batch_norm_legit.no_stats)
def draw_batch_norm_without_stats(draw: Draw, target: object) -> Call:
    shape, dtype = _draw_batch_shape(draw, 1), draw(floats)
    x, affine = draw(tensors(shape, dtype, "distinct")), _draw_affine(draw, shape[1:2], dtype)
    call = Call(target, (x, *affine, True, 0.1, draw(epsilons)), outputs=draw(requested_outputs))
    return draw(name_sizes(call, {0: [0, *range(2, len(shape))]}, least=2))


@strategy(aten.instance_norm.default)
def draw_instance_norm(draw: Draw, target: object) -> Call:
    shape, dtype = _draw_batch_shape(draw, 1, 1), draw(floats)
    x, affine = draw(tensors(shape, dtype, "distinct")), _draw_affine(draw, shape[1:2], dtype)
    call = Call(target, (x, *affine, None, None, True, 0.1, draw(epsilons), False))
    return draw(name_sizes(call, {0: [0, *range(2, len(shape))]}, least=2))


@strategy(aten.batch_norm.default, aten.native_batch_norm.default, aten._native_batch_norm_legit_no_training.default)
def draw_batch_norm(draw: Draw, target: object) -> Call:
    """Generate calls with running statistics; each parameter has any shape with one element per channel."""
    shape, dtype = _draw_batch_shape(draw, 1), draw(floats)
    each = st.sampled_from([(shape[1],), (shape[1], 1, 1), (1, shape[1])])
    x, affine = draw(tensors(shape, dtype)), _draw_affine(draw, draw(each), dtype)
    given = draw(each)
    running = [draw(tensors(given, dtype, what, constant=True)) for what in ("normal", "positive")]
    training = [] if "no_training" in str(target) else [False]
    cudnn = [False] if target is aten.batch_norm.default else []
    outputs = None if target is aten.batch_norm.default else (0,)
    call = Call(target, (x, *affine, *running, *training, 0.1, draw(epsilons), *cudnn), outputs=outputs)
    return draw(name_sizes(call, {0: [0, *range(2, len(shape))]}))
