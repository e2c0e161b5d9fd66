"""Keep composite operators whole while torch traces, which would decompose them step by step or by device.

``SHAPES`` computes the shapes of their results. A traced decomposition calls a stand-in (``stand_in``), and the graph
gets the operator itself in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from pipeline.aten.types import Function, Target
from pipeline.frozen import FrozenDict

aten = torch.ops.aten


def recurrent(
    input: torch.Tensor,
    hx: torch.Tensor,
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The shapes of an output and a last state, as tensors without values."""
    size = hx.shape[-1] * (1 + bidirectional)
    return input.new_empty((*input.shape[:-1], size)), torch.empty_like(hx)


def lstm(input: torch.Tensor, hx: Sequence[torch.Tensor], *rest: Any) -> tuple[torch.Tensor, ...]:
    """The shapes of an output and of two last states."""
    return (*recurrent(input, hx[0], *rest), torch.empty_like(hx[1]))


def lstm_cell(input: torch.Tensor, hx: Sequence[torch.Tensor], *weights: object) -> tuple[torch.Tensor, ...]:
    """The shapes of the states after a step."""
    return torch.empty_like(hx[0]), torch.empty_like(hx[1])


def gru_cell(input: torch.Tensor, hx: torch.Tensor, *weights: object) -> torch.Tensor:
    """The shape of the state after a step."""
    return torch.empty_like(hx)


RECURRENT: Final[Mapping[object, Callable[..., object]]] = {
    aten.lstm.input: lstm,
    aten.gru.input: recurrent,
    aten.rnn_tanh.input: recurrent,
    aten.rnn_relu.input: recurrent,
}
"""Recurrent layers, and their shapes."""

CELLS: Final[Mapping[Any, Function]] = {aten.lstm_cell.default: lstm_cell, aten.gru_cell.default: gru_cell}
"""A step of recurrent layers, and its shapes. On a GPU torch makes a kernel of it, whose shapes it does not know."""


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: object, **options: object
) -> torch.Tensor:
    """The shape of an attention's result."""
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


SHAPES: Final[Mapping[object, Callable[..., object]]] = {
    **RECURRENT,
    aten.scaled_dot_product_attention.default: attention,
}

_library = torch.library.Library("pipeline", "DEF")


def _stand_in(target: Target, shapes: Function) -> object:
    """An operator of the same schema, which torch does not take apart."""
    name = target._schema.name.removeprefix("aten::")
    _library.define(re.sub(r"^aten::\w+(\.\w+)?", name, str(target._schema)))
    _library.impl(name, shapes, "Meta")
    for device in ("CPU", "CUDA"):
        _library.impl(name, lambda *args, **kwargs: target(*args, **kwargs), device)
    return getattr(torch.ops.pipeline, name).default


STAND_INS: Final[Mapping[Any, Any]] = FrozenDict({target: _stand_in(target, f) for target, f in SHAPES.items()})
"""The function called in place of each operator."""

_MEANT: Final = FrozenDict({stand_in: target for target, stand_in in STAND_INS.items()})


def meant(target: object) -> object:
    """The operator that a stand-in represents; any other target unchanged."""
    return _MEANT.get(target, target)
