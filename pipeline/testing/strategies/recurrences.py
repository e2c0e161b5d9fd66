"""Calls of recurrences over tokens: one token, some in a chunk, and several chunks."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from pipeline.aten.linear_recurrence_ops import LINEAR_ATTENTION, SELECTIVE_SCAN
from pipeline.testing.calls import Call, Dim, TensorSpec
from pipeline.testing.strategies.common import Draw, calls, floats, tensors

TOKENS: tuple[Dim, ...] = ("t", "t", 1, 5, 70, 300)
"""Numbers of tokens: dynamic, 1, within a chunk, and over several chunks."""
FADES = ("uniform", -0.8, 0.0)


WIDTHS: st.SearchStrategy[Dim] = st.integers(1, 6) | st.just("w")


def _call(draw: Draw, target: object, arguments: tuple[TensorSpec | None, ...]) -> Call:
    names = {name for each in arguments if each is not None for name in each.names}
    return Call(
        target, arguments, sizes={name: draw(st.integers(1, 90 if name == "t" else 4)) for name in sorted(names)}
    )


@calls(LINEAR_ATTENTION)
def linear_attention(draw: Draw, target: object) -> Call:
    dtype, width, of_values = draw(floats), draw(WIDTHS), draw(WIDTHS)
    row: tuple[Dim, ...] = ("n", draw(st.integers(1, 3) | st.just("h")), draw(st.sampled_from(TOKENS)))
    query, key = (draw(tensors((*row, width), dtype, ("uniform", -0.5, 0.5))) for _ in range(2))
    value = draw(tensors((*row, of_values), dtype, "unit"))
    decay = draw(tensors((*row, width) if draw(st.booleans()) else row, torch.float32, FADES))
    beta = draw(tensors(row, dtype, ("uniform", 0.0, 1.0))) if draw(st.booleans()) else None
    state = draw(tensors(("n", row[1], of_values, width), torch.float32, "unit"))
    return _call(draw, target, (query, key, value, decay, beta, state))


@calls(SELECTIVE_SCAN)
def selective_scan(draw: Draw, target: object) -> Call:
    dtype, tokens, width, states = draw(floats), draw(st.sampled_from(TOKENS)), draw(WIDTHS), draw(st.integers(1, 4))
    input = draw(tensors(("n", width, tokens), dtype, "unit"))
    step = draw(tensors(("n", width, tokens), dtype, ("uniform", 0.0, 1.0)))
    constant = isinstance(width, int) and draw(st.booleans())
    a = draw(tensors((width, states), torch.float32, FADES, constant=constant))
    b, c = (draw(tensors(("n", states, tokens), dtype, "unit")) for _ in range(2))
    state = draw(tensors(("n", width, states), torch.float32, "unit"))
    return _call(draw, target, (input, step, a, b, c, state))


STRATEGIES = {**linear_attention, **selective_scan}
