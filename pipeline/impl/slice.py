"""Add slices by ATen's rules: bounds are clamped, count from the end if negative, and may be dynamic.
Padding is a slice that extends beyond its tensor."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, Size, SymbolicInt, Value, block, network_query
from pipeline.impl.empty import may_be_zero
from pipeline.impl.shape import as_size, bounds_of, expression, negate, size_product, size_sum, strided_slice


@block
def narrow(net: Net, x: ITensor, dim: int, start: Size, size: Size, step: int = 1) -> ITensor:
    """Return ``size`` elements along a dim from ``start`` on; return ``x`` itself if that is the whole dim."""
    if start == 0 and step == 1 and size == base.known_sizes(net, x)[dim]:
        return x
    return strided_slice(net, x, [dim], [start], [size], stride=[step])


@network_query
def slice_start(net: Net, bound: Size | None, size: Size) -> Size:
    """Return the start of a slice in a dim of this size, counted from the end if negative, then clamped to the dim."""
    if bound is None:
        return 0
    high, value = expression(size), expression(bound)
    least, most = bounds_of(net, value)
    if least < 0:
        value += high if most < 0 else high * sympy.Max(0, sympy.Min(1, -value))  # the factor is 0 for others
    inside = sympy.Max(value, 0) if bounds_of(net, value)[0] < 0 else value  # a range may imply the bounds
    return as_size(sympy.Min(inside, high) if bounds_of(net, value - high)[1] > 0 else inside)


@network_query
def is_data_dependent(net: Net, size: Size) -> bool:
    """Return whether a size was read from a tensor's element; TensorRT would need such a size on the host."""
    symbols = size.expr.free_symbols if isinstance(size, SymbolicInt) else ()
    return any(net.ctx.symbols.get(str(s), (None, 0))[1] is None for s in symbols)


@block
def select(net: Net, x: ITensor, dim: int, index: Size) -> ITensor:
    """Select the element at an index along a dim, and remove the dim."""
    sizes = base.known_sizes(net, x)
    one = narrow(net, x, dim, slice_start(net, index, sizes[dim]), 1)
    rest = [s for i, s in enumerate(sizes) if i != dim]
    if all(isinstance(s, int) for s in rest):
        return base.reshape(net, one, rest)
    return base.squeeze(net, one, [dim])


@block
def flip(net: Net, x: ITensor, dims: Sequence[int]) -> ITensor:
    """Reverse the order of elements along dims."""
    sizes = base.known_sizes(net, x)
    axes = sorted(a for a in {base.axis(d, len(sizes)) for d in dims} if sizes[a] not in (0, 1))
    if not axes:
        return x
    given = [sizes[a] for a in axes]
    last = [size_sum([size, -1]) for size in given]
    for i, size in enumerate(given):
        if may_be_zero(net, size):  # TensorRT rejects a start of -1 in an empty dim
            last[i] = base.elementwise(net, "MAX", base.size_tensor(net, last[i]), base.size_tensor(net, 0))
    return strided_slice(net, x, axes, last, given, stride=[-1] * len(axes))


@block
def roll(net: Net, x: ITensor, shifts: Sequence[Size], dims: Sequence[int]) -> ITensor:
    """Rotate the elements along dims by shifts, as torch.roll."""
    sizes = base.known_sizes(net, x)
    moves: dict[int, Size] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        a = base.axis(dim, len(sizes))
        moves[a] = size_sum([moves.get(a, 0), negate(shift)])
    for a, shift in moves.items():
        moves[a] = shift % sizes[a] if isinstance(shift, int) and isinstance(sizes[a], int) and sizes[a] else shift
    axes = sorted(a for a, start in moves.items() if start != 0)
    if not axes or 0 in sizes:
        return x
    return strided_slice(net, x, axes, [moves[a] for a in axes], [sizes[a] for a in axes], mode="WRAP")


@block
def flatten_dims(net: Net, x: ITensor, dim1: int, dim2: int) -> tuple[ITensor, list[int], list[Size]]:
    """Move two dims to the end and merge them; return the result, the permutation, and the sizes before the merge."""
    rank = base.rank(x)
    last = [base.axis(dim1, rank), base.axis(dim2, rank)]
    order = [*(i for i in range(rank) if i not in last), *last]
    moved = base.permute(net, x, order)
    sizes = base.known_sizes(net, moved)
    return base.reshape(net, moved, [*sizes[:-2], size_product(sizes[-2:])]), order, sizes


def diagonal_start(offset: int, columns: Size) -> Size:
    """Return the position at which a diagonal starts in a flattened matrix; its elements are ``columns + 1`` apart."""
    return offset if offset >= 0 else size_product([-offset, columns])


@block
def diagonal(net: Net, x: ITensor, offset: int, dim1: int, dim2: int, count: Size) -> ITensor:
    """Return a diagonal of the matrices in two dims, as a new last dim with ``count`` elements."""
    flat, _, sizes = flatten_dims(net, x, dim1, dim2)
    start = 0 if count == 0 else diagonal_start(offset, sizes[-1])
    return strided_slice(net, flat, [len(sizes) - 2], [start], [count], stride=[size_sum([sizes[-1], 1])])


MODES = {"constant": "FILL", "reflect": "REFLECT", "replicate": "CLAMP", "circular": "WRAP"}
"""The name of the ``trt.SampleMode`` for each of eager's padding modes."""


@block
def pad(
    net: Net, x: ITensor, amounts: Sequence[Size], shape: Sequence[Size], mode: str = "constant", value: Value = 0
) -> ITensor:
    """Pad both ends of the last dims, or crop an end whose amount is negative. ``amounts``: before and after the last
    dim, then before and after the dim before it, …. ``shape``: the shape of the result."""
    rank = base.rank(x)
    amount = {rank - 1 - i: [amounts[2 * i], amounts[2 * i + 1]] for i in range(len(amounts) // 2)}
    axes = sorted(a for a, both in amount.items() if both != [0, 0])
    if not axes:
        return x
    if mode == "circular" and any(isinstance(n, int) and n < 0 for n in amounts):
        dims, known = sorted(amount), base.known_sizes(net, x)
        kept = {a: [max(n, 0) if isinstance(n, int) else n for n in amount[a]] for a in dims}
        less = {a: [size_sum([n, negate(k)]) for n, k in zip(amount[a], kept[a], strict=True)] for a in dims}
        cropped = [size_sum([known[a], *less[a]]) for a in dims]
        x, amount = strided_slice(net, x, dims, [negate(less[a][0]) for a in dims], cropped), kept
    fill = base.tensor(net, value, base.dtype_of(x)) if mode == "constant" and value not in (0, False) else None
    start, sizes = [negate(amount[a][0]) for a in axes], [shape[a] for a in axes]
    return strided_slice(net, x, axes, start, sizes, mode=MODES[mode], fill=fill)
