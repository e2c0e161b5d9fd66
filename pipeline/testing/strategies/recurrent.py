"""Calls of recurrent layers: of any length, both ways, with and without biases and projection."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from pipeline.aten.types import Target
from pipeline.testing.calls import Call, Dim
from pipeline.testing.strategies.common import Draw, calls, floats, tensors

aten = torch.ops.aten

GATES = {aten.lstm.input: 4, aten.gru.input: 3, aten.rnn_tanh.input: 1, aten.rnn_relu.input: 1}
LENGTHS: tuple[Dim, ...] = ("t", "t", 1, 2, 17)
"""A dynamic one, some that are written out, and one that is a loop."""


@calls(*GATES)
def recurrent(draw: Draw, target: Target) -> Call:
    features, hidden, layers = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    directions, biased, constant = draw(st.integers(1, 2)), draw(st.booleans()), draw(st.booleans())
    projected = draw(st.none() | st.integers(1, hidden - 1)) if target is aten.lstm.input and hidden > 1 else None
    dtype, batch_first = draw(floats), draw(st.booleans())
    output: int = projected or hidden
    rows = GATES[target] * hidden
    shapes: list[tuple[Dim, ...]] = []
    for layer in range(layers):
        given: int = features if layer == 0 else output * directions
        biases: list[tuple[Dim, ...]] = [(rows,), (rows,)] if biased else []
        own: list[tuple[Dim, ...]] = [(rows, given), (rows, output), *biases]
        shapes += (own + ([(projected, hidden)] if projected else [])) * directions
    params = [draw(tensors(shape, dtype, values="unit", constant=constant)) for shape in shapes]
    steps = draw(st.sampled_from(LENGTHS))
    x = draw(tensors(("n", steps, features) if batch_first else (steps, "n", features), dtype, values="unit"))
    sizes = (output, hidden) if target is aten.lstm.input else (hidden,)
    states = [draw(tensors((layers * directions, "n", size), dtype, values="unit")) for size in sizes]
    options = (biased, layers, 0.0, draw(st.booleans()), directions == 2, batch_first)
    return Call(
        target,
        (x, states if target is aten.lstm.input else states[0], params, *options),
        sizes={"n": draw(st.integers(1, 3)), **({"t": draw(st.integers(1, 3))} if steps == "t" else {})},
    )


STRATEGIES = {**recurrent}
