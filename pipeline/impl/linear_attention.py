"""Gated linear attention: of one token as it is defined, of several by chunks of them.

In a chunk, a token's output is that of causal attention without a softmax, whose scores decay, beside what it reads of
the state before the chunk. By the delta rule, the values are solved for first: each lacks what its key reads of the
tokens before it, and of the state (Yang et al., 2024, https://arxiv.org/abs/2412.06464). A chunk's state is a linear
function of that before it: products over all chunks make it, so that only its application is left to be done in turn.
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
from pipeline.impl.base import ITensor, Size, Value
from pipeline.impl.block_decorators import block
from pipeline.impl.elementwise import binary, where
from pipeline.impl.loops import State, in_float32, repeated
from pipeline.impl.matmul import matmul
from pipeline.impl.reduce import reduce
from pipeline.impl.reduce_scan import cumulative_sum
from pipeline.impl.shape import as_size, bounds_of, expression, sampled
from pipeline.impl.slice import narrow
from pipeline.network.net import Net

CHUNK: Final = 64
"""Tokens of a chunk: its scores are so many squared for each head, and of so many tokens one step leads on."""
OF_CHANNELS: Final = 16
"""Tokens of a chunk whose keys' channels decay each by itself: a score is a sum over the channels, and no product."""
FEW: Final = 8
"""Up to so many chunks are written out, all of them whatever the number of tokens; more are a loop."""


@frozen
class Tokens:
    """What a step takes: ``query`` and ``key`` [B, H, L, K], ``value`` [B, H, L, V], ``decay`` [B, H, L, 1 or K],
    ``beta`` [B, H, L, 1] or None."""

    query: ITensor
    key: ITensor
    value: ITensor
    decay: ITensor
    beta: ITensor | None


@block
def linear_attention(
    net: Net, query: Value, key: Value, value: Value, decay: Value, beta: Value | None, state: Value
) -> tuple[ITensor, ITensor]:
    """The output [B, H, L, V] and the last state [B, H, V, K] of `aten.linear_recurrence_ops.linear_attention`."""
    dtypes = [base.dtype_of(value), base.dtype_of(state)]
    query, key, value, decay, state = (in_float32(net, each) for each in (query, key, value, decay, state))
    beta = None if beta is None else base.unsqueeze(net, in_float32(net, beta), [3])
    by_head = base.rank(decay) == 3
    tokens = Tokens(query, key, value, base.unsqueeze(net, decay, [3]) if by_head else decay, beta)
    length = expression(base.known_sizes(net, query)[2])
    longest = bounds_of(net, length)[1]
    if longest == 1:
        results = _one(net, tokens, state)
    else:
        most = int(min(longest, CHUNK if by_head else OF_CHANNELS))
        chunk = 1 << (most - 1).bit_length()
        few = longest <= FEW * chunk
        results = _several(
            net, tokens, state, as_size(FloorDiv((longest if few else length) + chunk - 1, chunk)), chunk
        )
    output, last = (base.cast(net, x, dtype) for x, dtype in zip(results, dtypes, strict=True))
    return output, last


def _one(net: Net, now: Tokens, state: ITensor) -> tuple[ITensor, ITensor]:
    """One token. The products are sums of float32: TensorRT's kernels for products would round to TF32. They are sums
    along the last dim, of what lies side by side."""
    state = binary(net, "PROD", state, base.unary(net, "EXP", now.decay))
    value = _turned(net, now.value)
    if now.beta is not None:
        known = reduce(net, "SUM", binary(net, "PROD", state, now.key), [3], True)
        value = binary(net, "PROD", binary(net, "SUB", value, known), now.beta)
    state = binary(net, "SUM", state, binary(net, "PROD", value, now.key))
    return _turned(net, reduce(net, "SUM", binary(net, "PROD", state, now.query), [3], True)), state


def _several(net: Net, tokens: Tokens, state: ITensor, count: Size, chunk: int) -> tuple[ITensor, ITensor]:
    """Tokens by ``count`` chunks of so many, which are filled with tokens that change nothing."""
    batch, heads, length, _ = base.known_sizes(net, tokens.query)
    beta = None if tokens.beta is None else _chunks(net, tokens.beta, count, chunk)
    query, key, value, decay = (
        _chunks(net, x, count, chunk) for x in (tokens.query, tokens.key, tokens.value, tokens.decay)
    )
    each = Tokens(query, key, value, decay, beta)
    since = cumulative_sum(net, each.decay, 3, torch.float32)
    last, faded = narrow(net, since, 3, chunk - 1, 1), base.unary(net, "EXP", since)
    left = base.unary(net, "EXP", binary(net, "SUB", last, since))
    scores = _scores(net, query, key, since, chunk, lowest=0)
    read, handed_on = binary(net, "PROD", query, faded), binary(net, "PROD", key, left)
    taken = [base.unary(net, "EXP", last)]
    if beta is not None:
        value, known = _solved(net, each, beta, since, faded, chunk)
        read = binary(net, "SUB", read, _product(net, scores, known))
        taken.append(_product(net, _turned(net, known), handed_on))
    taken.append(_product(net, _turned(net, value), handed_on))

    def step(now: Sequence[ITensor], before: State) -> tuple[ITensor, State]:
        fades, *known, added = now
        state = binary(net, "SUM", binary(net, "PROD", before[0], fades), added)
        return before[0], (binary(net, "SUB", state, _product(net, before[0], known[0])) if known else state,)

    states, (state,) = repeated(net, step, taken, (state,), most=FEW)
    output = binary(net, "SUM", _product(net, scores, value), _product(net, read, _turned(net, states)))
    whole = [batch, heads, as_size(expression(count) * chunk), base.known_sizes(net, tokens.value)[3]]
    output = base.reshape(net, base.permute(net, output, [1, 2, 0, 3, 4]), whole)
    return narrow(net, output, 2, 0, length), state


def _product(net: Net, a: ITensor, b: ITensor) -> ITensor:
    return matmul(net, a, b, empty=False)


def _turned(net: Net, x: ITensor) -> ITensor:
    """The last two dims exchanged."""
    return base.permute(net, x, [*range(base.rank(x) - 2), base.rank(x) - 1, base.rank(x) - 2])


def _scores(net: Net, query: ITensor, key: ITensor, since: ITensor, chunk: int, *, lowest: int) -> ITensor:
    """What each token [chunk, 1] reads of each [1, chunk] at least ``lowest`` before it: the product of query and key,
    as far as it has decayed since; 0 of the others."""
    reads = base.constant(net, np.tri(chunk, k=-lowest, dtype=np.bool_), rank=base.rank(query))
    if base.dims(since)[-1] == 1:
        left = _left(net, since, _turned(net, since), reads)
        return binary(net, "PROD", _product(net, query, _turned(net, key)), left)
    at = base.rank(query) - 1
    query, later = (base.unsqueeze(net, x, [at]) for x in (query, since))
    key, earlier = (base.unsqueeze(net, x, [at - 1]) for x in (key, since))
    reads = base.unsqueeze(net, reads, [at + 1])
    decayed = binary(net, "PROD", binary(net, "PROD", query, key), _left(net, later, earlier, reads))
    return reduce(net, "SUM", decayed, [at + 1], False)


def _left(net: Net, later: ITensor, earlier: ITensor, reads: ITensor) -> ITensor:
    """What is left since the earlier; 0 where nothing is read."""
    gone = where(net, reads, binary(net, "SUB", later, earlier), -math.inf, torch.float32)
    return base.unary(net, "EXP", gone)


def _solved(
    net: Net, each: Tokens, beta: ITensor, since: ITensor, faded: ITensor, chunk: int
) -> tuple[ITensor, ITensor]:
    """The delta rule's values of a chunk before which the state is 0, and the keys by which each lacks what the state
    has: the solution of a triangular system."""
    key = binary(net, "PROD", each.key, beta)
    system = _inverse(net, _scores(net, key, each.key, since, chunk, lowest=1), chunk)
    value, known = binary(net, "PROD", each.value, beta), binary(net, "PROD", key, faded)
    return _product(net, system, value), _product(net, system, known)


def _inverse(net: Net, lower: ITensor, size: int) -> ITensor:
    """The inverse of 1 + ``lower`` [..., size, size], which is 0 but below its diagonal; ``size`` is a power of two.

    From the inverses of two blocks of the diagonal follows that of the block that they are in.
    """
    one = base.constant(net, np.eye(size, dtype=np.float32), rank=base.rank(lower))
    inverse, block = one, 1
    place = np.arange(size)
    while block < size:
        row, column = place[:, None] // block, place[None, :] // block
        below = base.constant(net, ((row % 2 == 1) & (column == row - 1)), rank=base.rank(lower))
        between = where(net, below, lower, 0.0, torch.float32)
        if block > 1:
            between = _product(net, _product(net, inverse, between), inverse)
        inverse = binary(net, "SUB", inverse, between)
        block *= 2
    return inverse


def _chunks(net: Net, x: ITensor, count: Size, chunk: int) -> ITensor:
    """[B, H, L, width] as [chunks, B, H, chunk, width], zeros behind the last."""
    batch, heads, _, width = base.known_sizes(net, x)
    length = as_size(expression(count) * chunk)
    x = sampled(net, x, [2], [0], [length], mode="FILL")
    return base.permute(net, base.reshape(net, x, [batch, heads, count, chunk, width]), [2, 0, 1, 3, 4])
