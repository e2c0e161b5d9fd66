"""Calls of recurrent layers of any length, in one or both directions, with and without biases and projection.

Rows have one length, or several (packed sequences)."""

from __future__ import annotations

import torch
from attrs import frozen
from hypothesis import strategies as st

from pipeline.aten.packed_rnn_ops import LAYERS
from pipeline.aten.types import Target
from pipeline.testing.calls import Call, Dim, TensorSpec
from pipeline.testing.strategies.common import Draw, calls, floats, tensors

aten = torch.ops.aten

GATES = {aten.lstm.input: 4, aten.gru.input: 3, aten.rnn_tanh.input: 1, aten.rnn_relu.input: 1}
PACKED = {LAYERS[getattr(aten, target._schema.name.removeprefix("aten::")).data]: n for target, n in GATES.items()}
LENGTHS: tuple[Dim, ...] = ("t", "t", 1, 2, 17)
"""Lengths: dynamic, some that are unrolled, and one that becomes a loop."""


@frozen
class Layer:
    """A layer's initial states, weights and options, and the form of its input."""

    steps: Dim
    features: int
    dtype: torch.dtype
    state: object
    params: list[TensorSpec]
    options: tuple[object, ...]

    @property
    def sizes(self) -> list[str]:
        """Return the names of its sizes beside the batch."""
        return ["t"] if self.steps == "t" else []


@st.composite
def layers(draw: Draw, gates: int) -> Layer:
    """Draw a layer of so many gates; an LSTM has four."""
    features, hidden, count = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    directions, biased, constant = draw(st.integers(1, 2)), draw(st.booleans()), draw(st.booleans())
    projected = draw(st.none() | st.integers(1, hidden - 1)) if gates == 4 and hidden > 1 else None
    dtype = draw(floats)
    output: int = projected or hidden
    rows = gates * hidden
    shapes: list[tuple[Dim, ...]] = []
    for layer in range(count):
        given: int = features if layer == 0 else output * directions
        biases: list[tuple[Dim, ...]] = [(rows,), (rows,)] if biased else []
        own: list[tuple[Dim, ...]] = [(rows, given), (rows, output), *biases]
        shapes += (own + ([(projected, hidden)] if projected else [])) * directions
    params = [draw(tensors(shape, dtype, values="unit", constant=constant)) for shape in shapes]
    sizes = (output, hidden) if gates == 4 else (hidden,)
    states = [draw(tensors((count * directions, "n", size), dtype, values="unit")) for size in sizes]
    options = (biased, count, 0.0, draw(st.booleans()), directions == 2)
    state: object = states if gates == 4 else states[0]
    return Layer(draw(st.sampled_from(LENGTHS)), features, dtype, state, params, options)


@calls(*GATES)
def recurrent(draw: Draw, target: Target) -> Call:
    layer, batch_first = draw(layers(GATES[target])), draw(st.booleans())
    steps, features = layer.steps, layer.features
    shape = ("n", steps, features) if batch_first else (steps, "n", features)
    x = draw(tensors(shape, layer.dtype, values="unit"))
    sizes = {name: draw(st.integers(1, 3)) for name in ("n", *layer.sizes)}
    return Call(target, (x, layer.state, layer.params, *layer.options, batch_first), sizes=sizes)


@calls(*PACKED)
def packed(draw: Draw, target: Target) -> Call:
    layer = draw(layers(PACKED[target]))
    x = draw(tensors((layer.steps, "n", layer.features), layer.dtype, values="unit"))
    lengths = draw(tensors(("n",), torch.int64, ("between", 1, layer.steps)))
    sizes = {name: draw(st.integers(1, 3)) for name in ("n", *layer.sizes)}
    return Call(target, (x, lengths, layer.state, layer.params, *layer.options), sizes=sizes)


STRATEGIES = {**recurrent, **packed}
