"""Calls of padding, in every mode."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from pipeline.aten.types import Target
from pipeline.testing.calls import Call
from pipeline.testing.strategies.common import DTYPES, Draw, Shape, calls, dtypes, floats, moved, named, shapes

aten = torch.ops.aten


@st.composite
def _amounts(draw: Draw, shape: Shape, count: int, mode: str) -> list[int]:
    """Draw (before, after) for the last ``count`` dims: no more than the mode allows; negative ones leave elements."""
    found: list[int] = []
    for size in reversed(shape[len(shape) - count :]):
        most = {"reflect": size - 1, "circular": size - 1}.get(mode, 3)
        before = draw(st.integers(-1, min(most, 3)))
        found += [before, draw(st.integers(-1, min(most, 3)))]
    return found


@calls(aten.constant_pad_nd.default)
def constant_pad_nd(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes(1, 4)), draw(dtypes)
    amounts = draw(_amounts(shape, draw(st.integers(0, len(shape))), "constant"))
    value = draw(st.sampled_from([0, 1, 2.5, -3] if dtype.is_floating_point else [0, 1]))
    return draw(named(Call(target, (draw(moved(shape, dtype)), amounts, value)), least=3))


DIMS = {"1d": 1, "2d": 2, "3d": 3}


@calls(
    aten.reflection_pad1d.default,
    aten.reflection_pad2d.default,
    aten.reflection_pad3d.default,
    aten.replication_pad1d.default,
    aten.replication_pad2d.default,
    aten.replication_pad3d.default,
)
def pad_nd(draw: Draw, target: Target) -> Call:
    name = target._schema.name.removeprefix("aten::")
    count, mode = DIMS[name[-2:]], "reflect" if name.startswith("reflection") else "replicate"
    shape = draw(st.tuples(*[st.integers(2, 4)] * (count + draw(st.integers(1, 2)))))
    x = draw(moved(shape, draw(floats)))
    return draw(named(Call(target, (x, draw(_amounts(shape, count, mode)))), {0: range(len(shape))}, least=4))


@calls(aten._pad_circular.default)
def pad_circular(draw: Draw, target: object) -> Call:
    count = draw(st.integers(1, 3))
    shape = draw(st.tuples(*[st.integers(2, 4)] * (count + 2)))
    amounts = draw(_amounts(shape, count, "circular"))
    return draw(named(Call(target, (draw(moved(shape, draw(floats))), amounts)), least=4))


@calls(aten.pad.default)
def pad(draw: Draw, target: object) -> Call:
    mode = draw(st.sampled_from(["constant", "reflect", "replicate", "circular"]))
    count = draw(st.integers(1, 3))
    shape = draw(st.tuples(*[st.integers(2, 4)] * (count + 2)))
    dtype = draw(st.sampled_from(DTYPES) if mode == "constant" else floats)
    value = draw(st.none() | st.sampled_from([1.0, 2.0])) if mode == "constant" else None
    call = Call(target, (draw(moved(shape, dtype)), draw(_amounts(shape, count, mode)), mode, value))
    return draw(named(call, least=4))


STRATEGIES = {**constant_pad_nd, **pad_nd, **pad_circular, **pad}
