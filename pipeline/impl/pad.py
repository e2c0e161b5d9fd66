"""Padding, by slices that extend beyond their tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.impl import base
from pipeline.impl.base import ITensor, Size, Value
from pipeline.impl.block_decorators import block
from pipeline.impl.shape import negative, sampled, total
from pipeline.network.net import Net

MODES = {"constant": "FILL", "reflect": "REFLECT", "replicate": "CLAMP", "circular": "WRAP"}
"""TensorRT's ``SampleMode`` of eager's modes."""


@block
def pad(
    net: Net, x: ITensor, amounts: Sequence[Size], shape: Sequence[Size], mode: str = "constant", value: Value = 0
) -> ITensor:
    """Pad both ends of the last dims, or crop where an amount is negative.

    amounts: (before, after) of the last dim, then of the one before it, …. shape: the result's.
    """
    rank = base.rank(x)
    amount = {rank - 1 - i: (amounts[2 * i], amounts[2 * i + 1]) for i in range(len(amounts) // 2)}
    axes = sorted(a for a, both in amount.items() if both != (0, 0))
    if not axes:
        return x
    if mode == "circular" and any(isinstance(n, int) and n < 0 for n in amounts):
        x = _trimmed(net, x, amount)
        amount = {a: (_positive(before), _positive(after)) for a, (before, after) in amount.items()}
    fill = base.tensor(net, value, base.dtype_of(x)) if mode == "constant" and value not in (0, False) else None
    start, sizes = [negative(amount[a][0]) for a in axes], [shape[a] for a in axes]
    return sampled(net, x, axes, start, sizes, mode=MODES[mode], fill=fill)


def _trimmed(net: Net, x: ITensor, amount: Mapping[int, tuple[Size, Size]]) -> ITensor:
    """Crop by the negative amounts, before the rest wraps around."""
    axes, known = sorted(amount), base.known_sizes(net, x)
    less = {a: [total([n, negative(_positive(n))]) for n in amount[a]] for a in axes}
    sizes = [total([known[a], *less[a]]) for a in axes]
    return sampled(net, x, axes, [negative(less[a][0]) for a in axes], sizes)


def _positive(amount: Size) -> Size:
    return max(amount, 0) if isinstance(amount, int) else amount
