"""Calls that join, split and repeat tensors."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from pipeline.testing.calls import Call, Size
from pipeline.testing.strategies.common import Draw, calls, dims, dtypes, moved, named, shapes

aten = torch.ops.aten


@calls(aten.cat.default)
def cat(draw: Draw, target: object) -> Call:
    shape = list(draw(shapes(1, 4)))
    dim, mixed = draw(dims(len(shape))), draw(st.booleans())
    dtype = draw(dtypes)
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        own = [draw(st.integers(0, 3)) if d == dim % len(shape) else s for d, s in enumerate(shape)]
        parts.append(draw(moved(own, draw(dtypes) if mixed else dtype)))
    if draw(st.integers(0, 3)) == 0:
        parts.insert(draw(st.integers(0, len(parts))), draw(moved((0,), dtype)))
    if draw(st.booleans()) and len(shape) > 1:
        place = (dim + 1) % len(shape)
        parts = [draw(moved(_with(p.shape, place, "n"), p.dtype)) for p in parts if p.shape != (0,)]
        return Call(target, (parts, dim), sizes={"n": (1, 3, 6)})
    if draw(st.booleans()):
        parts = [
            draw(moved(_with(p.shape, dim, n), p.dtype)) for p, n in zip(parts, "nm", strict=False) if p.shape != (0,)
        ]
        return Call(target, (parts, dim), sizes={n: (1, 3, 6) for p in parts for n in p.names})
    return Call(target, (parts, dim))


def _with(shape: tuple[object, ...], dim: int, name: str) -> tuple[object, ...]:
    return tuple(name if d == dim % len(shape) else s for d, s in enumerate(shape))


@calls(aten.stack.default)
def stack(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes(0, 4)), draw(dtypes)
    parts = [draw(moved(shape, dtype)) for _ in range(draw(st.integers(1, 3)))]
    return draw(named(Call(target, (parts, draw(dims(len(shape) + 1))))))


@st.composite
def _sizes(draw: Draw, total: int) -> list[int]:
    """Draw sizes that add up to a number."""
    found: list[int] = []
    while total > 0 and len(found) < 4 and draw(st.booleans()):
        found.append(draw(st.integers(0, total)))
        total -= found[-1]
    return [*found, total]


@calls(
    aten.split_with_sizes.default,
    aten.split.sizes,
    aten.unsafe_split_with_sizes.default,
)
def split_with_sizes(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes(1, 4)), draw(dtypes)
    dim = draw(dims(len(shape)))
    if draw(st.integers(0, 3)) == 0:
        x = draw(moved(_with(shape, dim, "n"), dtype))
        return Call(target, (x, [2, Size("n", offset=-2)], dim), sizes={"n": (4, 5, 8)})
    rest = [d for d in range(len(shape)) if d != dim % len(shape)]
    return draw(named(Call(target, (draw(moved(shape, dtype)), draw(_sizes(shape[dim])), dim)), {0: rest}))


@calls(aten.split.Tensor, aten.unsafe_split.Tensor, aten.chunk.default)
def split(draw: Draw, target: object) -> Call:
    shape = draw(shapes(1, 4, zero=False))
    dim = draw(dims(len(shape)))
    rest = [d for d in range(len(shape)) if d != dim % len(shape)]
    return draw(named(Call(target, (draw(moved(shape, draw(dtypes))), draw(st.integers(1, 4)), dim)), {0: rest}))


@calls(aten.repeat.default)
def repeat(draw: Draw, target: object) -> Call:
    shape = draw(shapes(0, 3))
    repeats = [draw(st.integers(0, 3)) for _ in range(len(shape) + draw(st.integers(0, 2)))]
    call = Call(target, (draw(moved(shape, draw(dtypes))), repeats))
    if draw(st.integers(0, 3)) == 0:
        x = draw(moved((1, 3), call.specs[0].dtype))
        return Call(target, (x, [Size("n"), 2]), sizes={"n": (1, 3, 6)})
    return draw(named(call)) if 0 not in repeats and 0 not in shape else call


STRATEGIES = {**cat, **stack, **split_with_sizes, **split, **repeat}
