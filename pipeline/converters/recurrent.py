"""Convert recurrent layers of a length that may be dynamic: LSTM, GRU, and plain layers with tanh or relu; recurrences
over a dynamic number of tokens: gated linear attention and the selective scan; and cache updates: rows of a key or
value cache, written at positions that a tensor holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch

from pipeline.aten.arguments import argument
from pipeline.aten.kv_cache_ops import CACHE_UPDATE
from pipeline.aten.own_ops import LINEAR_ATTENTION, SELECTIVE_SCAN
from pipeline.aten.packed_rnn_ops import LAYERS
from pipeline.aten.types import Target, aten
from pipeline.converters.binding import converts
from pipeline.converters.declare import Rejection
from pipeline.impl import base
from pipeline.impl import cache as rows
from pipeline.impl import linear_attention as attention
from pipeline.impl import recurrent as impl
from pipeline.impl import selective_scan as scan
from pipeline.impl.base import ITensor, Value
from pipeline.impl.elementwise import compare
from pipeline.impl.index import iota
from pipeline.network.net import Net
from pipeline.settings import CompilationSettings

CELLS: Final[Mapping[Target, impl.Cell]] = {
    aten.lstm.input: impl.LSTM,
    aten.gru.input: impl.GRU,
    aten.rnn_tanh.input: impl.RNN_TANH,
    aten.rnn_relu.input: impl.RNN_RELU,
}


def drops_nothing(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """There must be no dropout between the layers."""
    drops = argument(node, "train") and argument(node, "dropout") and argument(node, "num_layers") > 1
    return not drops or Rejection(
        "dropout draws random numbers: an engine would draw other numbers than eager", "call model.eval() first"
    )


def _weights(params: Sequence[Value], has_biases: bool, projected: bool) -> Iterator[impl.Weights]:
    """Yield the weights for each layer and direction: input, hidden, biases of both, projection."""
    count = 2 + 2 * has_biases + projected
    for at in range(0, len(params), count):
        own = params[at : at + count]
        biases = (own[2], own[3]) if has_biases else (None, None)
        yield impl.Weights(own[0], own[1], biases, own[-1] if projected else None)


@converts(CELLS, validator=drops_nothing)
def recurrent(
    net: Net,
    cell: impl.Cell,
    input: Value,
    hx: Value,
    params: Sequence[Value],
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[ITensor | None, ...]:
    """gru.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train,
    bool bidirectional, bool batch_first) -> (Tensor, Tensor)"""
    states, weights = _states_and_weights(hx, params, has_biases)
    input = base.tensor(net, input)
    input = base.permute(net, input, [1, 0, 2]) if batch_first else input
    output, *last = impl.recurrent(net, cell, input, states, weights, bidirectional)
    return (base.permute(net, output, [1, 0, 2]) if batch_first else output, *last)


def _states_and_weights(
    hx: Value, params: Sequence[Value], has_biases: bool
) -> tuple[Sequence[Value], list[impl.Weights]]:
    """Return the initial states and the weights."""
    states = hx if isinstance(hx, (list, tuple)) else [hx]
    projected = len(states) == 2 and base.dims(states[0])[2] != base.dims(states[1])[2]
    return states, list(_weights(params, has_biases, projected))


PACKED: Final[Mapping[Target, impl.Cell]] = {
    LAYERS[aten.lstm.data]: impl.LSTM,
    LAYERS[aten.gru.data]: impl.GRU,
    LAYERS[aten.rnn_tanh.data]: impl.RNN_TANH,
    LAYERS[aten.rnn_relu.data]: impl.RNN_RELU,
}


@converts(PACKED, validator=drops_nothing)
def packed(
    net: Net,
    cell: impl.Cell,
    input: Value,
    lengths: Value,
    hx: Value,
    params: Sequence[Value],
    has_biases: bool,
    bidirectional: bool,
) -> tuple[ITensor | None, ...]:
    """packed_gru(Tensor input, Tensor lengths, Tensor hx, Tensor[] params, bool has_biases, int num_layers,
    float dropout, bool train, bool bidirectional) -> (Tensor, Tensor)"""
    states, weights = _states_and_weights(hx, params, has_biases)
    input = base.tensor(net, input)
    steps = iota(net, [base.size(net, input, 0), 1, 1], [1, 0, 0])
    ends = base.unsqueeze(net, base.tensor(net, lengths, torch.int64), [0, 2])
    return impl.recurrent(net, cell, input, states, weights, bidirectional, compare(net, "LESS", steps, ends))


@converts(LINEAR_ATTENTION)
def linear_attention(
    net: Net, query: Value, key: Value, value: Value, decay: Value, beta: Value | None, state: Value
) -> tuple[ITensor, ITensor]:
    """pipeline::linear_attention(Tensor query, Tensor key, Tensor value, Tensor decay, Tensor? beta, Tensor state)
    -> (Tensor, Tensor)"""
    return attention.linear_attention(net, query, key, value, decay, beta, state)


@converts(SELECTIVE_SCAN)
def selective_scan(
    net: Net, input: Value, step: Value, a: Value, b: Value, c: Value, state: Value
) -> tuple[ITensor, ITensor]:
    """pipeline::selective_scan(Tensor input, Tensor step, Tensor a, Tensor b, Tensor c, Tensor state)
    -> (Tensor, Tensor)"""
    return scan.selective_scan(net, input, step, a, b, c, state)


@converts(CACHE_UPDATE)
def cache_update(net: Net, cache: Value, update: Value, starts: Value) -> ITensor:
    """cache_update(Tensor cache, Tensor update, Tensor starts) -> Tensor"""
    return rows.update(net, cache, update, starts)
