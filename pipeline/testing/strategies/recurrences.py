"""Calls of recurrences over tokens: one token, some in a chunk, and several chunks."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from pipeline.aten.recurrences import LINEAR_ATTENTION, SELECTIVE_SCAN
from pipeline.testing.calls import Call, Dim, TensorSpec
from pipeline.testing.strategies.common import Draw, calls, tensors

TOKENS: tuple[Dim, ...] = ("t", "t", 1, 5, 70, 300)
"""A number that varies, one, and some that a chunk has, or several."""
FADES = ("uniform", -0.8, 0.0)


def _call(draw: Draw, target: object, arguments: tuple[TensorSpec | None, ...], tokens: Dim) -> Call:
    sizes = {"n": draw(st.integers(1, 3)), **({"t": draw(st.integers(1, 90))} if tokens == "t" else {})}
    return Call(target, arguments, sizes=sizes)


@calls(LINEAR_ATTENTION)
def linear_attention(draw: Draw, target: Any) -> Call:
    tokens, heads = draw(st.sampled_from(TOKENS)), draw(st.integers(1, 3))
    width, of_values = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    row: tuple[Dim, ...] = ("n", heads, tokens)
    query, key = (draw(tensors((*row, width), torch.float32, ("uniform", -0.5, 0.5))) for _ in range(2))
    value = draw(tensors((*row, of_values), torch.float32, "unit"))
    decay = draw(tensors((*row, width) if draw(st.booleans()) else row, torch.float32, FADES))
    beta = draw(tensors(row, torch.float32, ("uniform", 0.0, 1.0))) if draw(st.booleans()) else None
    state = draw(tensors(("n", heads, width, of_values), torch.float32, "unit"))
    return _call(draw, target, (query, key, value, decay, beta, state), tokens)


@calls(SELECTIVE_SCAN)
def selective_scan(draw: Draw, target: Any) -> Call:
    tokens, width, states = draw(st.sampled_from(TOKENS)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    input = draw(tensors(("n", width, tokens), torch.float32, "unit"))
    step = draw(tensors(("n", width, tokens), torch.float32, ("uniform", 0.0, 1.0)))
    a = draw(tensors((width, states), torch.float32, FADES, constant=draw(st.booleans())))
    b, c = (draw(tensors(("n", states, tokens), torch.float32, "unit")) for _ in range(2))
    state = draw(tensors(("n", width, states), torch.float32, "unit"))
    return _call(draw, target, (input, step, a, b, c, state), tokens)


STRATEGIES = {**linear_attention, **selective_scan}
