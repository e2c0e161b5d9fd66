"""Add gated linear attention: by the recurrence for a single token, in parallel chunks for several tokens.

A chunk's output is causal attention with decaying scores and without softmax, plus the product of its queries and the
state before the chunk. The delta rule first corrects each value by the prediction for its key from earlier tokens and
the state: a triangular system (Yang et al., 2024, https://arxiv.org/abs/2412.06464). A chunk's state is a linear
function of the previous chunk's: matmuls over all chunks compute these functions, and only applying these functions is
sequential.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from attrs import frozen
from torch.utils._sympy.functions import FloorDiv

from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, Size, Value, block
from pipeline.impl.elementwise import binary, where
from pipeline.impl.loops import State, in_float32, run_steps, split_into_chunks
from pipeline.impl.matmul import matmul
from pipeline.impl.reduce import cumulative_sum, reduce
from pipeline.impl.shape import as_size, bounds_of, expression
from pipeline.impl.slice import narrow

CHUNK: Final = 64
"""The number of tokens in a chunk: a head has this number squared of scores, and a sequential step covers a chunk."""
CHANNEL_CHUNK: Final = 16
"""The number of tokens in a chunk if each key channel has its own decay: scores are then sums over channels."""
UNROLLED: Final = 8
"""The maximum number of chunks that are unrolled; a loop processes more chunks."""


@frozen
class TokenInputs:
    """Tensors [B, H, L, D] by token; D is K (``query``, ``key``), V (``value``), 1 or K (``decay``), 1 (``beta``)."""

    query: ITensor
    key: ITensor
    value: ITensor
    decay: ITensor
    beta: ITensor | None


@block
def linear_attention(
    net: Net, query: Value, key: Value, value: Value, decay: Value, beta: Value | None, state: Value
) -> tuple[ITensor, ITensor]:
    """Return the output [B, H, L, V] and last state [B, H, V, K] of the operator `aten.own_ops.linear_attention`."""
    dtypes = [base.dtype_of(value), base.dtype_of(state)]
    query, key, value, decay, state = (in_float32(net, each) for each in (query, key, value, decay, state))
    beta = None if beta is None else base.unsqueeze(net, in_float32(net, beta), [3])
    by_head = base.rank(decay) == 3
    tokens = TokenInputs(query, key, value, base.unsqueeze(net, decay, [3]) if by_head else decay, beta)
    length = expression(base.known_sizes(net, query)[2])
    longest = bounds_of(net, length)[1]
    if longest == 1:
        results = _process_one_token(net, tokens, state)
    else:
        most = int(min(longest, CHUNK if by_head else CHANNEL_CHUNK))
        chunk = 1 << (most - 1).bit_length()
        most_tokens = longest if longest <= UNROLLED * chunk else length
        results = _by_chunks(net, tokens, state, as_size(FloorDiv(most_tokens + chunk - 1, chunk)), chunk)
    output, last = (base.cast(net, x, dtype) for x, dtype in zip(results, dtypes, strict=True))
    return output, last


def _process_one_token(net: Net, token: TokenInputs, state: ITensor) -> tuple[ITensor, ITensor]:
    """Return the output and next state for one token, by products and float32 sums: matmuls would round to TF32."""
    state = binary(net, "PROD", state, base.unary(net, "EXP", token.decay))
    value = _transpose(net, token.value)
    if token.beta is not None:
        known = reduce(net, "SUM", binary(net, "PROD", state, token.key), [3], True)
        value = binary(net, "PROD", binary(net, "SUB", value, known), token.beta)
    state = binary(net, "SUM", state, binary(net, "PROD", value, token.key))
    return _transpose(net, reduce(net, "SUM", binary(net, "PROD", state, token.query), [3], True)), state


def _by_chunks(net: Net, tokens: TokenInputs, state: ITensor, count: Size, chunk: int) -> tuple[ITensor, ITensor]:
    """Return the output and last state, computed in ``count`` chunks of ``chunk`` tokens; padding keeps the state."""
    batch, heads, length, _ = base.known_sizes(net, tokens.query)
    beta = None if tokens.beta is None else split_into_chunks(net, tokens.beta, 2, count, chunk)
    query, key, value, decay = (
        split_into_chunks(net, x, 2, count, chunk) for x in (tokens.query, tokens.key, tokens.value, tokens.decay)
    )
    each = TokenInputs(query, key, value, decay, beta)
    since = cumulative_sum(net, each.decay, 3, torch.float32)
    last, faded = narrow(net, since, 3, chunk - 1, 1), base.unary(net, "EXP", since)
    left = base.unary(net, "EXP", binary(net, "SUB", last, since))
    scores = _decayed_scores(net, query, key, since, chunk, lag=0)
    read, decayed = binary(net, "PROD", query, faded), binary(net, "PROD", key, left)
    taken = [base.unary(net, "EXP", last)]
    if beta is not None:
        value, known = _solve_delta_rule(net, each, beta, since, faded, chunk)
        read = binary(net, "SUB", read, _matmul(net, scores, known))
        taken.append(_matmul(net, _transpose(net, known), decayed))
    taken.append(_matmul(net, _transpose(net, value), decayed))

    def step(now: Sequence[ITensor], before: State) -> tuple[ITensor, State]:
        fades, *known, added = now
        state = binary(net, "SUM", binary(net, "PROD", before[0], fades), added)
        return before[0], (binary(net, "SUB", state, _matmul(net, before[0], known[0])) if known else state,)

    states, (state,) = run_steps(net, step, taken, (state,), unroll=UNROLLED)
    output = binary(net, "SUM", _matmul(net, scores, value), _matmul(net, read, _transpose(net, states)))
    padded = [batch, heads, as_size(expression(count) * chunk), base.known_sizes(net, tokens.value)[3]]
    output = base.reshape(net, base.permute(net, output, [1, 2, 0, 3, 4]), padded)
    return narrow(net, output, 2, 0, length), state


def _matmul(net: Net, a: ITensor, b: ITensor) -> ITensor:
    return matmul(net, a, b, may_be_empty=False)


def _transpose(net: Net, x: ITensor) -> ITensor:
    return base.permute(net, x, [*range(base.rank(x) - 2), base.rank(x) - 1, base.rank(x) - 2])


def _decayed_scores(net: Net, query: ITensor, key: ITensor, log_decay: ITensor, chunk: int, *, lag: int) -> ITensor:
    """Return products of queries and keys, [..., chunk, chunk], with decay; 0 for keys under ``lag`` tokens before."""
    reads = base.constant(net, np.tri(chunk, k=-lag, dtype=np.bool_), rank=base.rank(query))
    if base.dims(log_decay)[-1] == 1:
        left = _decay_factor(net, log_decay, _transpose(net, log_decay), reads)
        return binary(net, "PROD", _matmul(net, query, _transpose(net, key)), left)
    at = base.rank(query) - 1
    query, later = (base.unsqueeze(net, x, [at]) for x in (query, log_decay))
    key, earlier = (base.unsqueeze(net, x, [at - 1]) for x in (key, log_decay))
    reads = base.unsqueeze(net, reads, [at + 1])
    decayed = binary(net, "PROD", binary(net, "PROD", query, key), _decay_factor(net, later, earlier, reads))
    return reduce(net, "SUM", decayed, [at + 1], False)


def _decay_factor(net: Net, later: ITensor, earlier: ITensor, is_visible: ITensor) -> ITensor:
    """Return ``exp(later - earlier)``, the decay between tokens from their log decays; 0 where not ``is_visible``."""
    gone = where(net, is_visible, binary(net, "SUB", later, earlier), -math.inf, torch.float32)
    return base.unary(net, "EXP", gone)


def _solve_delta_rule(
    net: Net, tokens: TokenInputs, beta: ITensor, log_decay: ITensor, decay_factors: ITensor, chunk: int
) -> tuple[ITensor, ITensor]:
    """Solve the delta rule for each chunk's state S: return U and K, so that the corrected values are ``U - K @ S.T``.
    ``decay_factors``: ``exp(log_decay)``, the decay since the start of the chunk."""
    key = binary(net, "PROD", tokens.key, beta)
    system = _invert_unit_triangle(net, _decayed_scores(net, key, tokens.key, log_decay, chunk, lag=1), chunk)
    value, known = binary(net, "PROD", tokens.value, beta), binary(net, "PROD", key, decay_factors)
    return _matmul(net, system, value), _matmul(net, system, known)


def _invert_unit_triangle(net: Net, lower: ITensor, size: int) -> ITensor:
    """Return the inverse of 1 + ``lower``, where ``lower`` [..., size, size] is strictly lower triangular and size is a
    power of two: inverses of two diagonal blocks give the inverse of the block that contains both."""
    one = base.constant(net, np.eye(size, dtype=np.float32), rank=base.rank(lower))
    inverse, block = one, 1
    place = np.arange(size)
    while block < size:
        row, column = place[:, None] // block, place[None, :] // block
        below = base.constant(net, (row % 2 == 1) & (column == row - 1), rank=base.rank(lower))
        between = where(net, below, lower, 0.0, torch.float32)
        if block > 1:
            between = _matmul(net, _matmul(net, inverse, between), inverse)
        inverse = binary(net, "SUB", inverse, between)
        block *= 2
    return inverse
