"""Preserve composite operators during tracing; torch would decompose them to several operators or device kernels.

During tracing, decompositions call a stand-in (``STAND_INS``), an operator whose result shapes ``SHAPES`` computes. In
the traced graph it is then replaced by the composite operator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from pipeline.aten.types import Function, Target, aten
from pipeline.frozen import FrozenDict


def recurrent_shapes(
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
    """Return meta tensors with the shapes of a recurrent layer's output and last state."""
    size = hx.shape[-1] * (1 + bidirectional)
    return input.new_empty((*input.shape[:-1], size)), torch.empty_like(hx)


def lstm_shapes(input: torch.Tensor, hx: Sequence[torch.Tensor], *rest: Any) -> tuple[torch.Tensor, ...]:
    """Return meta tensors with the shapes of an LSTM's output and of its two last states."""
    return (*recurrent_shapes(input, hx[0], *rest), torch.empty_like(hx[1]))


def lstm_cell_shape(input: torch.Tensor, hx: Sequence[torch.Tensor], *weights: object) -> tuple[torch.Tensor, ...]:
    """Return meta tensors with the shapes of an LSTM cell's two states after one step."""
    return torch.empty_like(hx[0]), torch.empty_like(hx[1])


def gru_cell_shape(input: torch.Tensor, hx: torch.Tensor, *weights: object) -> torch.Tensor:
    """Return a meta tensor with the shape of a GRU cell's state after one step."""
    return torch.empty_like(hx)


RECURRENT: Final[Mapping[object, Callable[..., object]]] = {
    aten.lstm.input: lstm_shapes,
    aten.gru.input: recurrent_shapes,
    aten.rnn_tanh.input: recurrent_shapes,
    aten.rnn_relu.input: recurrent_shapes,
}
"""The operators of recurrent layers, each with a function that computes the shapes of its results."""

CELLS: Final[Mapping[Any, Function]] = {aten.lstm_cell.default: lstm_cell_shape, aten.gru_cell.default: gru_cell_shape}
"""The operators of recurrent cells, each with a function for the result shapes, which torch's GPU kernel lacks."""


def attention_shape(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: object, **options: object
) -> torch.Tensor:
    """Return an empty tensor with the shape of an attention's result."""
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


SHAPES: Final[Mapping[object, Callable[..., object]]] = {
    **RECURRENT,
    aten.scaled_dot_product_attention.default: attention_shape,
}

_library = torch.library.Library("pipeline", "DEF")


def _define_stand_in(target: Target, shapes: Function) -> object:
    """Define and return an operator that acts like ``target``, but traces as one call. ``shapes``: its meta kernel."""
    name = target._schema.name.removeprefix("aten::")
    _library.define(re.sub(r"^aten::\w+(\.\w+)?", name, str(target._schema)))
    _library.impl(name, shapes, "Meta")
    for device in ("CPU", "CUDA"):
        _library.impl(name, lambda *args, **kwargs: target(*args, **kwargs), device)
    return getattr(torch.ops.pipeline, name).default


STAND_INS: Final[Mapping[Any, Any]] = FrozenDict({target: _define_stand_in(target, f) for target, f in SHAPES.items()})
"""For each preserved composite operator, the stand-in that is called during tracing."""

_MEANT: Final = FrozenDict({stand_in: target for target, stand_in in STAND_INS.items()})


def composite_of_stand_in(target: object) -> object:
    """Return the composite operator of the stand-in ``target`` (see `STAND_INS`); return any other target unchanged."""
    return _MEANT.get(target, target)
