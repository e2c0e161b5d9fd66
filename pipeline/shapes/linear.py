"""Solve expressions that are linear in one symbol (``4*s + 1``) for the symbol."""

from __future__ import annotations

from functools import lru_cache

import sympy


@lru_cache(maxsize=4096)
def linear_coefficients(expr: sympy.Basic, name: str) -> tuple[int, int] | None:
    """Return the slope and offset of an expression that is linear in this symbol and has no other symbol; else None."""
    if [s.name for s in expr.free_symbols] != [name]:
        return None
    (symbol,) = expr.free_symbols
    slope, offset = expr.coeff(symbol, 1), expr.subs(symbol, 0)
    line = slope.is_Integer and slope != 0 and sympy.expand(expr - slope * symbol - offset) == 0
    return (int(slope), int(offset)) if line and offset.is_Integer else None


def solve_for(expr: object, name: str, value: int) -> int | None:
    """Return the integer at which a linear expression of a symbol (``4*s + 1``) has this value; None if none does."""
    line = linear_coefficients(expr, name)
    if line is None or (value - line[1]) % line[0] != 0:
        return None
    return (value - line[1]) // line[0]


def inverse_text(expr: object, name: str, size: str) -> list[str]:
    """Return Python code that computes a symbol from an input's ``size`` that is linear in the symbol (``x.shape[1] //
    4``); empty if the expression is not linear."""
    line = linear_coefficients(expr, name)
    if line is None:
        return []
    slope, offset = line
    whole = f"({size} {'-' if offset > 0 else '+'} {abs(offset)})" if offset else size
    return [f"({whole} // {slope})" if slope != 1 else whole]
