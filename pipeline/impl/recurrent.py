"""Add recurrent layers. One matmul computes the contribution of the inputs at all steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

from pipeline.impl import base, slice
from pipeline.impl.activation import activation, separate_from_matmul
from pipeline.impl.base import ITensor, Net, Value, block
from pipeline.impl.elementwise import binary, where
from pipeline.impl.loops import State, run_steps, stack
from pipeline.impl.matmul import linear
from pipeline.impl.shape import concatenate


@frozen
class Weights:
    """The weights of a recurrent layer in one direction: ``input`` [gates * hidden, features], ``hidden`` [gates *
    hidden, output], ``biases`` of both or (None, None), ``projection`` [output, hidden] of an LSTM or None."""

    input: Value
    hidden: Value
    biases: tuple[Value | None, Value | None] = (None, None)
    projection: Value | None = None


@frozen
class Cell:
    """A recurrent cell. ``step``: from (network, input contribution, state, weights) to the next state, a tuple whose
    first tensor is also the output. ``late_bias``: whether ``step`` adds the hidden bias, not its caller."""

    step: Callable[[Net, ITensor, State, Weights], State]
    late_bias: bool = False


def _add_hidden_contribution(net: Net, input: ITensor, state: State, weights: Weights) -> ITensor:
    return binary(net, "SUM", input, _multiply_state(net, state[0], weights.hidden, None))


def _multiply_state(net: Net, state: ITensor, weight: Value, bias: Value | None) -> ITensor:
    """Multiply a state by a weight. A hidden size of 1 does not become an elementwise product (see `linear`), since
    TensorRT would repeat it in each later gate and step (31 MB for a GRU of eight steps)."""
    return linear(net, state, weight, bias, outer_product=False)


def _elman_cell(activate: Callable[[Net, ITensor], ITensor]) -> Cell:
    def step(net: Net, input: ITensor, state: State, weights: Weights) -> State:
        return (activate(net, _add_hidden_contribution(net, input, state, weights)),)

    return Cell(step)


def _lstm_step(net: Net, input: ITensor, state: State, weights: Weights) -> State:
    enter, forget, new, leave = _split_gates(net, _add_hidden_contribution(net, input, state, weights), 4)
    kept = binary(net, "PROD", _sigmoid(net, forget), state[1])
    added = binary(net, "PROD", _sigmoid(net, enter), activation(net, "TANH", new))
    cell = binary(net, "SUM", kept, added)
    output = binary(net, "PROD", _sigmoid(net, leave), activation(net, "TANH", cell))
    if weights.projection is not None:
        output = _multiply_state(net, output, weights.projection, None)
    return output, cell


def _gru_step(net: Net, input: ITensor, state: State, weights: Weights) -> State:
    own = _multiply_state(net, state[0], weights.hidden, weights.biases[1])
    pairs = list(zip(_split_gates(net, input, 3), _split_gates(net, own, 3), strict=True))
    reset, keep = (_sigmoid(net, binary(net, "SUM", *pair)) for pair in pairs[:2])
    remembered = binary(net, "PROD", reset, pairs[2][1])
    new = activation(net, "TANH", binary(net, "SUM", pairs[2][0], remembered))
    change = binary(net, "SUB", state[0], new)
    return (binary(net, "SUM", new, binary(net, "PROD", keep, change)),)


LSTM, GRU = Cell(_lstm_step), Cell(_gru_step, late_bias=True)
RNN_TANH = _elman_cell(lambda net, x: activation(net, "TANH", x))
RNN_RELU = _elman_cell(lambda net, x: activation(net, "RELU", separate_from_matmul(net, x)))


def _sigmoid(net: Net, x: ITensor) -> ITensor:
    return activation(net, "SIGMOID", x)


def _split_gates(net: Net, x: ITensor, count: int) -> list[ITensor]:
    """Split [batch, count * hidden] into ``count`` gates [batch, hidden]."""
    size = base.dims(x)[1] // count
    return [slice.narrow(net, x, 1, i * size, size) for i in range(count)]


@block
def recurrent(
    net: Net,
    cell: Cell,
    x: Value,
    states: Sequence[Value],
    weights: Sequence[Weights],
    bidirectional: bool,
    in_sequence: ITensor | None = None,
) -> tuple[ITensor, ...]:
    """Run all layers of a recurrent module.

    x: [steps, batch, features]. states: each [layers * directions, batch, hidden]. weights: by layer, then direction.
    in_sequence: bool [steps, batch, 1], whether a step is within its sequence; later steps keep the state and output 0.
    Return the output [steps, batch, directions * hidden] and the last states, in the shapes of ``states``.
    """
    x, directions = base.tensor(net, x), 1 + bidirectional
    first = [base.tensor(net, state) for state in states]
    last: list[State] = []
    for index in range(0, len(weights), directions):
        outputs = []
        for direction in range(directions):
            at = index + direction
            state = tuple(slice.select(net, s, 0, at) for s in first)
            output, state = _run_layer(net, cell, x, state, weights[at], in_sequence, reverse=direction == 1)
            outputs.append(output)
            last.append(state)
        x = outputs[0] if directions == 1 else concatenate(net, outputs, -1, base.dtype_of(x))
    return x, *(stack(net, parts) for parts in zip(*last, strict=True))


def _run_layer(
    net: Net, cell: Cell, x: ITensor, state: State, weights: Weights, in_sequence: ITensor | None, *, reverse: bool
) -> tuple[ITensor, State]:
    """Run one layer in one direction on [steps, batch, features]; return [steps, batch, hidden] and the last state."""
    given = linear(net, x, weights.input, weights.biases[0])
    if weights.biases[1] is not None and not cell.late_bias:
        given = binary(net, "SUM", given, weights.biases[1])

    def step(now: Sequence[ITensor], state: State) -> tuple[ITensor, State]:
        following = cell.step(net, now[0], state, weights)
        if in_sequence is None:
            return following[0], following
        kept = tuple(where(net, now[1], new, old) for new, old in zip(following, state, strict=True))
        return where(net, now[1], following[0], 0.0, base.dtype_of(following[0])), kept

    taken = [given] if in_sequence is None else [given, in_sequence]
    return run_steps(net, step, taken, state, reverse=reverse)
