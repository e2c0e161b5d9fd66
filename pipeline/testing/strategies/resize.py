"""Calls of resizing and of sampling on grids."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from pipeline.aten.types import Target
from pipeline.testing.calls import Call
from pipeline.testing.strategies.common import Draw, calls, floats, named, spatial_rank, tensors

aten = torch.ops.aten

PACKETS = (
    aten.upsample_nearest1d,
    aten.upsample_nearest2d,
    aten.upsample_nearest3d,
    aten._upsample_nearest_exact1d,
    aten._upsample_nearest_exact2d,
    aten._upsample_nearest_exact3d,
    aten.upsample_linear1d,
    aten.upsample_bilinear2d,
    aten.upsample_trilinear3d,
    aten.upsample_bicubic2d,
    aten._upsample_bilinear2d_aa,
    aten._upsample_bicubic2d_aa,
)
factors = st.sampled_from((2.0, 1.5, 0.5, 3.0, 1.7, 0.6))


def _input(draw: Draw, rank: int) -> object:
    dtype = draw(st.just(torch.float32) | floats)
    return draw(tensors([2, 2, *draw(st.lists(st.integers(3, 6), min_size=rank, max_size=rank))], dtype))


def _aligned(draw: Draw, target: Target) -> list[bool]:
    """Draw align_corners, where the operator has it."""
    names = [argument.name for argument in target._schema.arguments]
    return [draw(st.booleans())] if "align_corners" in names else []


def _sizes(draw: Draw, target: object, rank: int) -> list[int]:
    """Draw sizes; the last is above 1 with antialiasing, since torch 2.13 repeats the first row there on a CPU."""
    *others, last = draw(st.lists(st.integers(1, 9), min_size=rank, max_size=rank))
    return [*others, max(last, 2) if "_aa" in str(target) else last]


def _dynamic(draw: Draw, call: Call, rank: int) -> Call:
    return draw(named(call, {0: draw(st.sampled_from(([0], range(rank + 2))))}, least=3))


@calls(*(packet.vec for packet in PACKETS))
def by_size_or_scale(draw: Draw, target: object) -> Call:
    rank = spatial_rank(target)
    sizes = _sizes(draw, target, rank) if draw(st.booleans()) else None
    some = factors.filter(lambda factor: "_aa" not in str(target) or factor > 0.6)
    scales = None if sizes is not None else draw(st.lists(some, min_size=rank, max_size=rank))
    return _dynamic(draw, Call(target, (_input(draw, rank), sizes, *_aligned(draw, target), scales)), rank)


@calls(*(packet.default for packet in PACKETS))
def by_size(draw: Draw, target: object) -> Call:
    rank = spatial_rank(target)
    sizes = _sizes(draw, target, rank)
    return _dynamic(draw, Call(target, (_input(draw, rank), sizes, *_aligned(draw, target))), rank)


@calls(aten.grid_sampler.default, aten.grid_sampler_2d.default)
def grid_sampler(draw: Draw, target: object) -> Call:
    values = draw(st.sampled_from(("unit", "small", "normal")))
    x, grid = draw(tensors(("n", 2, "h", 5), torch.float32)), draw(tensors(("n", "m", 4, 2), torch.float32, values))
    modes = (draw(st.integers(0, 2)), draw(st.integers(0, 2)), draw(st.booleans()))
    return Call(target, (x, grid, *modes), sizes={"n": 2, "h": (2, 4, 8), "m": 3})


STRATEGIES = {**by_size_or_scale, **by_size, **grid_sampler}
