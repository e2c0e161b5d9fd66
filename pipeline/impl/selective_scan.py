"""The selective scan of Mamba: of one token as it is defined, of several at once, or by chunks of them.

Each state is combined with the one 1, 2, 4, … tokens before it, as far as that has decayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch.utils._sympy.functions import FloorDiv

from pipeline.impl import base
from pipeline.impl.base import ITensor, Size, Value
from pipeline.impl.block_decorators import block
from pipeline.impl.elementwise import binary
from pipeline.impl.loops import State, in_float32, repeated
from pipeline.impl.reduce import reduce
from pipeline.impl.reduce_scan import cumulative_sum
from pipeline.impl.shape import as_size, bounds_of, expression, sampled
from pipeline.impl.slice import narrow
from pipeline.network.net import Net

AT_ONCE: Final = 1024
"""Up to so many tokens are one chunk, of just their number. Each has a state in memory."""
CHUNK: Final = 256
"""Tokens of a chunk where there may be more."""
MOST: Final = 16
"""Of a known number of tokens so many chunks at most, which are written out: longer, if need be. A loop of a known
number of them does not build (docs/tensorrt.md, "Networks")."""


@block
def selective_scan(
    net: Net, input: Value, step: Value, a: Value, b: Value, c: Value, state: Value
) -> tuple[ITensor, ITensor]:
    """The output [B, D, L] and the last state [B, D, N] of `aten.linear_recurrence_ops.selective_scan`."""
    dtypes = [base.dtype_of(input), base.dtype_of(state)]
    given = [in_float32(net, each) for each in (input, step, b, c)]
    rates, state = in_float32(net, a), in_float32(net, state)
    length = base.known_sizes(net, given[0])[2]
    longest = bounds_of(net, expression(length))[1]
    if longest == 1:
        results = _one(net, given, rates, state)
    elif longest <= AT_ONCE:
        results = _scan(net, given, rates, state, length, int(longest))
    else:
        most = max(CHUNK, -(-length // MOST)) if isinstance(length, int) else CHUNK
        results = _several(net, given, rates, state, 1 << (most - 1).bit_length())
    output, last = (base.cast(net, x, dtype) for x, dtype in zip(results, dtypes, strict=True))
    return output, last


def _one(net: Net, now: Sequence[ITensor], a: ITensor, state: ITensor) -> tuple[ITensor, ITensor]:
    """One token."""
    input, step, b, c = now
    fades = _left(net, base.unsqueeze(net, a, [0]), step)
    added = binary(net, "PROD", binary(net, "PROD", step, input), _turned(net, b))
    state = binary(net, "SUM", binary(net, "PROD", state, fades), added)
    return reduce(net, "SUM", binary(net, "PROD", state, _turned(net, c)), [2], True), state


def _turned(net: Net, x: ITensor) -> ITensor:
    return base.permute(net, x, [0, 2, 1])


def _scan(
    net: Net, now: Sequence[ITensor], a: ITensor, state: ITensor, length: Size, longest: int
) -> tuple[ITensor, ITensor]:
    """Tokens at once: each state is combined with that 1, 2, 4, … tokens before it."""
    rates = base.unsqueeze(net, a, [0, 3])  # [1, D, N, 1]
    input, step, b, c = (base.unsqueeze(net, x, [d]) for x, d in zip(now, (2, 2, 1, 1), strict=True))
    since = cumulative_sum(net, step, 3, torch.float32)
    first = binary(net, "PROD", _left(net, rates, narrow(net, since, 3, 0, 1)), base.unsqueeze(net, state, [3]))
    added = binary(net, "PROD", binary(net, "PROD", step, input), b)
    states = binary(net, "SUM", added, sampled(net, first, [3], [0], [length], mode="FILL"))
    for back in (1 << k for k in range((longest - 1).bit_length())):
        left = _left(net, rates, binary(net, "SUB", since, _back(net, since, back, length)))
        states = binary(net, "SUM", states, binary(net, "PROD", left, _back(net, states, back, length)))
    output = reduce(net, "SUM", binary(net, "PROD", states, c), [2], False)
    return output, base.squeeze(net, narrow(net, states, 3, as_size(expression(length) - 1), 1), [3])


def _several(net: Net, tokens: Sequence[ITensor], a: ITensor, state: ITensor, chunk: int) -> tuple[ITensor, ITensor]:
    """Tokens by chunks of so many, the last of which is filled with tokens that change nothing."""
    batch, width, length = base.known_sizes(net, tokens[0])
    count = as_size(FloorDiv(expression(length) + chunk - 1, chunk))

    def scan(now: Sequence[ITensor], before: State) -> tuple[ITensor, State]:
        output, last = _scan(net, now, a, before[0], chunk, chunk)
        return output, (last,)

    taken = [_chunks(net, x, count, chunk) for x in tokens]
    output, (state,) = repeated(net, scan, taken, (state,), most=MOST)
    whole = [batch, width, as_size(expression(count) * chunk)]
    return narrow(net, base.reshape(net, base.permute(net, output, [1, 2, 0, 3]), whole), 2, 0, length), state


def _left(net: Net, rates: ITensor, steps: ITensor) -> ITensor:
    """What is left of a state after steps."""
    return base.unary(net, "EXP", binary(net, "PROD", rates, steps))


def _back(net: Net, x: ITensor, places: int, length: Size) -> ITensor:
    """Along the last dim, what is so many places before; 0 where there is none."""
    return sampled(net, x, [3], [-places], [length], mode="FILL")


def _chunks(net: Net, x: ITensor, count: Size, chunk: int) -> ITensor:
    """[B, width, L] as [chunks, B, width, chunk], zeros behind the last."""
    batch, width, _ = base.known_sizes(net, x)
    x = sampled(net, x, [2], [0], [as_size(expression(count) * chunk)], mode="FILL")
    return base.permute(net, base.reshape(net, x, [batch, width, count, chunk]), [2, 0, 1, 3])
