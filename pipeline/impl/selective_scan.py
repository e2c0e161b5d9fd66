"""Add Mamba's selective scan: by its recurrence for one token, by a parallel scan for several, by chunks for many.
The parallel scan combines each state with the decayed state 1, 2, 4, … tokens before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torch.utils._sympy.functions import FloorDiv

from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, Size, Value, block
from pipeline.impl.elementwise import binary
from pipeline.impl.loops import State, in_float32, run_steps, split_into_chunks
from pipeline.impl.reduce import reduce
from pipeline.impl.shape import as_size, bounds_of, expression, strided_slice
from pipeline.impl.slice import narrow

AT_ONCE: Final = 1024
"""The maximum number of tokens that form a single chunk; the state of each token is stored in memory."""
CHUNK: Final = 256
"""The number of tokens per chunk if there may be more than `AT_ONCE` tokens."""
MOST: Final = 16
"""The maximum number of chunks for a static number of tokens. They are unrolled, since a loop with a static trip count
fails to build; chunks are longer if necessary."""


@block
def selective_scan(
    net: Net, input: Value, step: Value, a: Value, b: Value, c: Value, state: Value
) -> tuple[ITensor, ITensor]:
    """Return output [B, D, L], last state [B, D, N] of `aten.own_ops.selective_scan`, which defines the arguments."""
    dtypes = [base.dtype_of(input), base.dtype_of(state)]
    given = [in_float32(net, each) for each in (input, step, b, c)]
    rates, state = in_float32(net, a), in_float32(net, state)
    length = base.known_sizes(net, given[0])[2]
    longest = bounds_of(net, expression(length))[1]
    if longest == 1:
        results = _process_one_token(net, given, rates, state)
    elif longest <= AT_ONCE:
        results = _parallel_scan(net, given, rates, state, length, int(longest))
    else:
        most = max(CHUNK, -(-length // MOST)) if isinstance(length, int) else CHUNK
        results = _by_chunks(net, given, rates, state, 1 << (most - 1).bit_length())
    output, last = (base.cast(net, x, dtype) for x, dtype in zip(results, dtypes, strict=True))
    return output, last


def _process_one_token(net: Net, token: Sequence[ITensor], a: ITensor, state: ITensor) -> tuple[ITensor, ITensor]:
    """Return the output and the next state for one token, given as (input, step, b, c) of `selective_scan`."""
    input, step, b, c = token
    fades = _decay_factor(net, base.unsqueeze(net, a, [0]), step)
    added = binary(net, "PROD", binary(net, "PROD", step, input), _transpose(net, b))
    state = binary(net, "SUM", binary(net, "PROD", state, fades), added)
    return reduce(net, "SUM", binary(net, "PROD", state, _transpose(net, c)), [2], True), state


def _transpose(net: Net, x: ITensor) -> ITensor:
    """Swap the last two dims of a tensor of rank 3."""
    return base.permute(net, x, [0, 2, 1])


def _parallel_scan(
    net: Net, tokens: Sequence[ITensor], a: ITensor, state: ITensor, length: Size, longest: int
) -> tuple[ITensor, ITensor]:
    """Return the output and last state of ``length`` tokens (at most ``longest``), by a parallel scan that adds to each
    state the decayed states 1, 2, 4, … tokens before. ``tokens``: input, step, b and c of `selective_scan`."""
    rates = base.unsqueeze(net, a, [0, 3])  # [1, D, N, 1]
    input, step, b, c = (base.unsqueeze(net, x, [d]) for x, d in zip(tokens, (2, 2, 1, 1), strict=True))
    first = binary(net, "PROD", _decay_factor(net, rates, narrow(net, step, 3, 0, 1)), base.unsqueeze(net, state, [3]))
    added = binary(net, "PROD", binary(net, "PROD", step, input), b)
    states = binary(net, "SUM", added, strided_slice(net, first, [3], [0], [length], mode="FILL"))
    window = step  # the steps of the last `back` tokens, summed; differences of one cumulative sum would cancel
    for back in (1 << k for k in range((longest - 1).bit_length())):
        left = _decay_factor(net, rates, window)
        states = binary(net, "SUM", states, binary(net, "PROD", left, _shift_right(net, states, back, length)))
        if 2 * back < longest:
            window = binary(net, "SUM", window, _shift_right(net, window, back, length))
    output = reduce(net, "SUM", binary(net, "PROD", states, c), [2], False)
    return output, base.squeeze(net, narrow(net, states, 3, as_size(expression(length) - 1), 1), [3])


def _by_chunks(net: Net, tokens: Sequence[ITensor], a: ITensor, state: ITensor, chunk: int) -> tuple[ITensor, ITensor]:
    """Return the output and last state, computed in chunks of ``chunk`` tokens. ``tokens``: input, step, b and c of
    `selective_scan`; padding tokens have step 0, which keeps the state."""
    batch, width, length = base.known_sizes(net, tokens[0])
    count = as_size(FloorDiv(expression(length) + chunk - 1, chunk))

    def scan(now: Sequence[ITensor], before: State) -> tuple[ITensor, State]:
        output, last = _parallel_scan(net, now, a, before[0], chunk, chunk)
        return output, (last,)

    taken = [split_into_chunks(net, x, 2, count, chunk) for x in tokens]
    output, (state,) = run_steps(net, scan, taken, (state,), unroll=MOST)
    padded = [batch, width, as_size(expression(count) * chunk)]
    return narrow(net, base.reshape(net, base.permute(net, output, [1, 2, 0, 3]), padded), 2, 0, length), state


def _decay_factor(net: Net, rates: ITensor, steps: ITensor) -> ITensor:
    """Return the factor by which a state decays over time steps: ``exp(rates * steps)``."""
    return base.unary(net, "EXP", binary(net, "PROD", rates, steps))


def _shift_right(net: Net, x: ITensor, positions: int, length: Size) -> ITensor:
    """Shift a tensor to the right along its last dim, and fill the first ``positions`` positions with 0."""
    return strided_slice(net, x, [3], [-positions], [length], mode="FILL")
