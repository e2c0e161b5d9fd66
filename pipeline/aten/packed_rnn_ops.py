"""Define recurrent layers over sequences of different lengths.
``pipeline::packed_lstm``, for example, computes torch's result for a packed sequence from padded rows and lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor

from pipeline.aten.types import Argument, Target, aten
from pipeline.frozen import FrozenDict

ARGUMENTS: Final = "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional"
GIVEN: Final = "Tensor input, Tensor lengths"


def pack_rows(rows: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pack padded sequences into one tensor without padding, as torch's PackedSequence does.

    Args:
        rows: [T, B, ...], time first.
        lengths: [B], integers from 1 to T, in any order.

    Returns:
        The data [sum of lengths, ...], the batch size of each step, and the sequences' indices by decreasing length.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    data, sizes = torch.ops.aten._pack_padded_sequence(
        rows.index_select(1, order.to(rows.device)), lengths[order].cpu(), False
    )
    return data, sizes, order.to(rows.device)


def _run_packed_layer(
    layer: Callable[..., Sequence[Tensor]],
    input: Tensor,
    lengths: Tensor,
    hx: Argument,
    params: Sequence[Tensor],
    *rest: Argument,
) -> tuple[Tensor, ...]:
    """Pack padded sequences, run a recurrent layer on them, and return the output (padded with 0) and last states."""
    data, sizes, order = pack_rows(input, lengths)
    back = torch.argsort(order)
    states = [state.index_select(1, order) for state in ([hx] if isinstance(hx, Tensor) else hx)]
    output, *last = layer(data, sizes, states[0] if isinstance(hx, Tensor) else states, params, *rest)
    padded, _ = torch.ops.aten._pad_packed_sequence(output, sizes, False, 0.0, input.shape[0])
    return tuple(each.index_select(1, back) for each in (padded, *last))


def _packed_layer_shapes(
    input: Tensor, lengths: Tensor, hx: Argument, params: Sequence[Tensor], *rest: Argument
) -> tuple[Tensor, ...]:
    """Return empty results of an operator in `LAYERS`: the output, then the last states. ``hx``: the initial state, or
    a list of two for an LSTM; ``rest``: the schema's other arguments, the last of which is ``bidirectional``."""
    states = [hx] if isinstance(hx, Tensor) else hx
    output = input.new_empty((*input.shape[:-1], states[0].shape[-1] * (1 + rest[-1])))
    return (output, *map(torch.empty_like, states))


def _define_padded_operator(layer: Target) -> Target:
    """Define ``pipeline::packed_lstm`` for ``aten.lstm.data``, and so on: it packs padded rows and runs ``layer``."""
    name, two = layer._schema.name.removeprefix("aten::"), layer is aten.lstm.data
    schema = f"({GIVEN}, {'Tensor[]' if two else 'Tensor'} hx, {ARGUMENTS}) -> (Tensor, Tensor{', Tensor' * two})"
    run = partial(_run_packed_layer, layer)
    made = torch.library.custom_op(f"pipeline::packed_{name}", run, mutates_args=(), schema=schema)
    made.register_fake(_packed_layer_shapes)
    return getattr(torch.ops.pipeline, f"packed_{name}").default


LAYERS: Final[Mapping[Target, Target]] = FrozenDict(
    {
        layer: _define_padded_operator(layer)
        for layer in (aten.lstm.data, aten.gru.data, aten.rnn_tanh.data, aten.rnn_relu.data)
    }
)
"""The operator on padded rows for each recurrent layer's overload on packed sequences. An example is
``pipeline::packed_lstm(Tensor input, Tensor lengths, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers,
float dropout, bool train, bool bidirectional) -> (Tensor, Tensor, Tensor)``.

The input is [T, B, features], time first; the lengths [B] are from 1 to T, in any order. The output is 0 after the end
of a sequence. The last states are those at its end; the backward direction begins there.
"""


@torch.library.custom_op("pipeline::packed_rows", mutates_args=())
def packed_rows(rows: Tensor, lengths: Tensor) -> Tensor:
    """Return a packed sequence's data, [sum of lengths, ...], from rows [T, B, ...]. Lengths must not increase."""
    data: Tensor = torch.ops.aten._pack_padded_sequence(rows, lengths.cpu(), False)[0]
    return data


@packed_rows.register_fake
def _fake_packed_rows(rows: Tensor, lengths: Tensor) -> Tensor:
    """Return an empty result of `packed_rows`. Its number of rows, the sum of ``lengths``, is a new symbol."""
    return rows.new_empty((torch.library.get_ctx().new_dynamic_size(), *rows.shape[2:]))


@torch.library.custom_op("pipeline::padded_rows", mutates_args=())
def padded_rows(data: Tensor, lengths: Tensor, steps: int) -> Tensor:
    """Return padded rows [steps, B, ...] from a packed sequence's data, [sum of lengths, ...]; the padding is 0."""
    padded: Tensor = torch.ops.aten._pad_packed_sequence(data, batch_sizes(lengths, steps), False, 0.0, steps)[0]
    return padded


@padded_rows.register_fake
def _fake_padded_rows(data: Tensor, lengths: Tensor, steps: int) -> Tensor:
    return data.new_empty((steps, lengths.shape[0], *data.shape[1:]))


@torch.library.custom_op("pipeline::batch_sizes", mutates_args=())
def batch_sizes(lengths: Tensor, steps: int) -> Tensor:
    """Return how many sequences reach each step, up to the length of the longest. That length is data-dependent, so a
    fake result has ``steps`` elements."""
    counts = (torch.arange(steps)[:, None] < lengths.cpu()).sum(1)
    return counts[: int(lengths.max())].contiguous()


@batch_sizes.register_fake
def _fake_batch_sizes(lengths: Tensor, steps: int) -> Tensor:
    return lengths.new_empty((steps,), device="cpu", dtype=torch.int64)


PACKED_ROWS, PADDED_ROWS, BATCH_SIZES = (
    getattr(torch.ops.pipeline, name).default for name in ("packed_rows", "padded_rows", "batch_sizes")
)
"""``pipeline::packed_rows(Tensor rows, Tensor lengths) -> Tensor``,
``pipeline::padded_rows(Tensor data, Tensor lengths, SymInt steps) -> Tensor``,
``pipeline::batch_sizes(Tensor lengths, SymInt steps) -> Tensor``"""
