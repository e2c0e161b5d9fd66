"""Recurrent layers stay whole while a model is exported, so that the length of a sequence may be dynamic.

torch.export infers the shapes of ``aten.lstm`` and its like by writing the steps out, which takes a length for a
constant and time that grows with it. Here their shapes are worked out from those of their inputs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch._C import DispatchKey

aten = torch.ops.aten

KEY: Final = DispatchKey.CompositeImplicitAutograd
_lock = threading.RLock()


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


SHAPES: Final[Mapping[Any, Callable[..., Any]]] = {
    aten.lstm.input: lstm,
    aten.gru.input: recurrent,
    aten.rnn_tanh.input: recurrent,
    aten.rnn_relu.input: recurrent,
}


@contextmanager
def whole_recurrences() -> Iterator[None]:
    """Within it, tracing asks ``SHAPES`` about these operators; torch's own kernels come back afterwards."""
    with _lock:
        before = {op: op.py_kernels[KEY] for op in SHAPES}
        try:
            _install(SHAPES)
            yield
        finally:
            _install(before)


def _install(kernels: Mapping[Any, Callable[..., Any]]) -> None:
    for op, kernel in kernels.items():
        op.py_kernels[KEY] = kernel
        op._uncache_dispatch(KEY)
        op._dispatch_cache.clear()
