"""Slices by ATen's rules: bounds clamped, counted from the end where negative, known when the engine runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from pipeline.converters.context import ConversionContext, SymbolicInt
from pipeline.impl import base
from pipeline.impl.base import ITensor, Size
from pipeline.impl.shape import sampled
from pipeline.program import bounds


def narrow(ctx: ConversionContext, name: str, x: ITensor, dim: int, start: Size, size: Size, step: int = 1) -> ITensor:
    """``size`` elements along a dim, from ``start`` on, in steps; all of them in order is ``x`` itself."""
    if start == 0 and step == 1 and size == base.known_sizes(ctx, x)[dim]:
        return x
    return sampled(ctx, name, x, [dim], [start], [size], stride=[step])


def sum_of(sizes: Sequence[Size]) -> Size:
    """The sizes added up."""
    return _size(sum(map(_expression, sizes), sympy.Integer(0)))


def first(ctx: ConversionContext, bound: Size | None, size: Size) -> Size:
    """Where a slice starts in a dim of this size: ``bound`` counted from the start, and inside."""
    if bound is None:
        return 0
    low, high, value = sympy.Integer(0), _expression(size), _expression(bound)
    wrapped = _wrapped(ctx, value, high)
    return _size(_clamped(ctx, wrapped, low, high))


def _expression(size: Size) -> Any:
    return size.expr if isinstance(size, SymbolicInt) else sympy.Integer(size)


def _size(expr: Any) -> Size:
    return int(expr) if expr.is_number else SymbolicInt(expr)


def _wrapped(ctx: ConversionContext, value: Any, size: Any) -> Any:
    """A negative index counted from the start. ``Max(0, Min(1, -v))`` is ``v < 0``, where only the engine knows."""
    low, high = _range(ctx, value)
    if low >= 0:
        return value
    return value + (size if high < 0 else size * sympy.Max(0, sympy.Min(1, -value)))


def _clamped(ctx: ConversionContext, value: Any, low: Any, high: Any) -> Any:
    """``value`` in ``low..high``; what its range already says is not asked of the engine."""
    inside = sympy.Max(value, low) if _range(ctx, value - low)[0] < 0 else value
    return sympy.Min(inside, high) if _range(ctx, value - high)[1] > 0 else inside


def _range(ctx: ConversionContext, expr: Any) -> tuple[float, float]:
    """Bounds of an expression; infinite where a symbol has none."""
    if expr.is_number:
        return int(expr), int(expr)
    if any(str(symbol) not in ctx.ranges for symbol in expr.free_symbols):
        return -sympy.oo, sympy.oo
    found = bounds(expr, ctx.ranges)
    return found.min, found.max
