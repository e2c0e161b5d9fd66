"""Define custom operators ``pipeline::…``: ``size``, markers that compute nothing, and recurrences over tokens.
A marker returns its tensor unchanged and states a fact about it; ``size`` returns a (data-dependent) size as a tensor.

Recurrences are the stateful layers of language models, for any number of tokens. An engine computes a single token by
the recurrence itself, and several tokens in parallel chunks (`pipeline.impl.linear_attention`,
`pipeline.impl.selective_scan`).
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from pipeline.aten.types import Target

_library = torch.library.Library("pipeline", "FRAGMENT")
for _name, _input in (("open_mask", "mask"), ("again", "input")):
    _library.define(f"{_name}(Tensor {_input}) -> Tensor")
    _library.impl(_name, torch.clone, "CompositeExplicitAutograd")

OPEN_MASK: Final[Any] = torch.ops.pipeline.open_mask.default
"""The marker operator for an attention mask in which every row has at least one unmasked key."""

AGAIN: Final[Any] = torch.ops.pipeline.again.default
"""The marker operator for inputs of the second call, if the model is traced over two calls."""


@torch.library.custom_op("pipeline::size", mutates_args=())
def size(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the size of a dim at run time, as a 0-d int64 tensor instead of a Python int."""
    return torch.tensor(x.shape[dim], device=x.device)


@size.register_fake
def _fake_size(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.new_empty((), dtype=torch.int64)


SIZE = torch.ops.pipeline.size.default


@torch.library.custom_op("pipeline::linear_attention", mutates_args=())
def linear_attention(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute gated linear attention, with the delta rule if ``beta`` is given.

    Each token multiplies the state by ``exp(decay)``, then adds the outer product of its value and key; with the delta
    rule, the outer product of ``beta * (value - state @ key)`` and the key. The token's output is ``state @ query``.
    Mamba-2, gated DeltaNet, Kimi delta attention and lightning attention are instances.

    Args:
        query: [B, H, L, K].
        key: [B, H, L, K].
        value: [B, H, L, V].
        decay: [B, H, L], or [B, H, L, K] with a decay per channel of the keys; at most 0.
        beta: [B, H, L].
        state: [B, H, V, K], before the first token.

    Returns:
        The output [B, H, L, V] in the dtype of ``value``, and the state after the last token in the dtype of ``state``.
        Both are computed in float32 or wider.
    """
    outputs, dtypes, at_least = [], (value.dtype, state.dtype), torch.promote_types(state.dtype, torch.float32)
    state = state.to(at_least)
    for at in range(query.shape[2]):
        q, k, v, g = (each[:, :, at].to(at_least) for each in (query, key, value, decay))
        state = state * (g[..., None, None] if g.dim() == 2 else g[..., None, :]).exp()
        if beta is not None:
            v = (v - (state * k[..., None, :]).sum(-1)) * beta[:, :, at, None].to(at_least)
        state = state + v[..., None] * k[..., None, :]
        outputs.append((state * q[..., None, :]).sum(-1))
    return torch.stack(outputs, 2).to(dtypes[0]), state.to(dtypes[1], copy=True)


@linear_attention.register_fake
def _fake_linear_attention(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    return value.new_empty(value.shape), state.new_empty(state.shape)


@torch.library.custom_op("pipeline::selective_scan", mutates_args=())
def selective_scan(
    input: Tensor, step: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the selective scan of Mamba.

    Each token multiplies the state by ``exp(step * a)``, then adds ``step * input * b``. The token's output is the
    state times ``c``, summed over N.

    Args:
        input: [B, D, L].
        step: [B, D, L], at least 0.
        a: [D, N], at most 0.
        b: [B, N, L].
        c: [B, N, L].
        state: [B, D, N], before the first token.

    Returns:
        The output [B, D, L] in the dtype of ``input``, and the state after the last token in the dtype of ``state``.
        Both are computed in float32 or wider.
    """
    outputs, dtypes, at_least = [], (input.dtype, state.dtype), torch.promote_types(state.dtype, torch.float32)
    input, step, a, b, c, state = (x.to(at_least) for x in (input, step, a, b, c, state))
    for at in range(input.shape[2]):
        u, dt = input[..., at, None], step[..., at, None]
        state = state * (dt * a).exp() + dt * u * b[:, None, :, at]
        outputs.append((state * c[:, None, :, at]).sum(-1))
    return torch.stack(outputs, -1).to(dtypes[0]), state.to(dtypes[1], copy=True)


@selective_scan.register_fake
def _fake_scan(input: Tensor, step: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return empty tensors with the shapes of the results of `selective_scan`: the output and the last state."""
    return input.new_empty(input.shape), state.new_empty(state.shape)


LINEAR_ATTENTION: Final[Target] = torch.ops.pipeline.linear_attention.default
SELECTIVE_SCAN: Final[Target] = torch.ops.pipeline.selective_scan.default
