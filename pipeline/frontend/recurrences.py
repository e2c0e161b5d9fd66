"""Recurrent layers stay whole while a model is exported, so that the length of a sequence may be dynamic.

torch.export infers the shapes of ``aten.lstm`` and its like by writing the steps out, which takes a length for a
constant and time that grows with it. Here their shapes are worked out from those of their inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch._C import DispatchKey

from pipeline.frontend.replacement import Kernel

aten = torch.ops.aten

KEY: Final = DispatchKey.CompositeImplicitAutograd


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


def whole(shapes: Kernel) -> Callable[[Kernel], Kernel]:
    """What gives these shapes in the place of torch's own kernel."""
    return lambda own: shapes


SHAPES: Final[Mapping[Any, Kernel]] = {
    aten.lstm.input: lstm,
    aten.gru.input: recurrent,
    aten.rnn_tanh.input: recurrent,
    aten.rnn_relu.input: recurrent,
}
