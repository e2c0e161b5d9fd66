"""Convert recurrent layers, gated linear attention, the selective scan, and KV cache updates at computed positions.
Recurrent layers are LSTM, GRU, and RNN with tanh or relu; the number of steps may be static or dynamic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch

from pipeline.aten.kv_cache_ops import CACHE_UPDATE
from pipeline.aten.own_ops import LINEAR_ATTENTION, SELECTIVE_SCAN
from pipeline.aten.packed_rnn_ops import LAYERS
from pipeline.aten.types import Target, aten
from pipeline.converters.binding import CompilationSettings, Rejection, argument, converts
from pipeline.impl import base
from pipeline.impl import linear_attention as attention
from pipeline.impl import recurrent as impl
from pipeline.impl import selective_scan as scan
from pipeline.impl.base import ITensor, Net, Value
from pipeline.impl.elementwise import compare
from pipeline.impl.index import iota
from pipeline.impl.scatter import cache_update

CELLS: Final[Mapping[Target, impl.Cell]] = {
    aten.lstm.input: impl.LSTM,
    aten.gru.input: impl.GRU,
    aten.rnn_tanh.input: impl.RNN_TANH,
    aten.rnn_relu.input: impl.RNN_RELU,
}


def check_no_dropout(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """There must be no dropout between the layers of the recurrent network."""
    drops = argument(node, "train") and argument(node, "dropout") and argument(node, "num_layers") > 1
    return not drops or Rejection(
        "dropout samples random numbers, and an engine cannot draw those of PyTorch", "call model.eval() first"
    )


@converts(CELLS, validator=check_no_dropout)
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
    """gru.input(Tensor input, Tensor hx, Tensor[] params, …) -> (Tensor, Tensor), and the other recurrent layers"""
    states, weights = _states_and_weights(hx, params, has_biases)
    input = base.tensor(net, input)
    input = base.permute(net, input, [1, 0, 2]) if batch_first else input
    output, *last = impl.recurrent(net, cell, input, states, weights, bidirectional)
    return (base.permute(net, output, [1, 0, 2]) if batch_first else output, *last)


def _states_and_weights(
    hx: Value, params: Sequence[Value], has_biases: bool
) -> tuple[Sequence[Value], list[impl.Weights]]:
    """Return the initial states as a list, and the weights grouped by layer and direction."""
    states = hx if isinstance(hx, (list, tuple)) else [hx]
    projected = len(states) == 2 and base.dims(states[0])[2] != base.dims(states[1])[2]
    count, weights = 2 + 2 * has_biases + projected, []
    for at in range(0, len(params), count):
        own = params[at : at + count]
        biases = (own[2], own[3]) if has_biases else (None, None)
        weights.append(impl.Weights(own[0], own[1], biases, own[-1] if projected else None))
    return states, weights


@converts({LAYERS[layer.overloadpacket.data]: cell for layer, cell in CELLS.items()}, validator=check_no_dropout)
def packed_recurrent(
    net: Net,
    cell: impl.Cell,
    input: Value,
    lengths: Value,
    hx: Value,
    params: Sequence[Value],
    has_biases: bool,
    bidirectional: bool,
) -> tuple[ITensor | None, ...]:
    """packed_gru(Tensor input, Tensor lengths, Tensor hx, Tensor[] params, …) -> (Tensor, Tensor); also other layers"""
    states, weights = _states_and_weights(hx, params, has_biases)
    input = base.tensor(net, input)
    steps = iota(net, [base.size(net, input, 0), 1, 1], [1, 0, 0])
    ends = base.unsqueeze(net, base.tensor(net, lengths, torch.int64), [0, 2])
    return impl.recurrent(net, cell, input, states, weights, bidirectional, compare(net, "LESS", steps, ends))


@converts(
    {LINEAR_ATTENTION: attention.linear_attention, SELECTIVE_SCAN: scan.selective_scan, CACHE_UPDATE: cache_update}
)
def convert_by_block(net: Net, building_block: Callable[..., Value], *operands: Value) -> Value:
    """pipeline::selective_scan(Tensor input, Tensor step, Tensor a, Tensor b, Tensor c, Tensor state)
    -> (Tensor, Tensor); also other operators whose arguments their building block takes unchanged."""
    return building_block(net, *operands)
