"""Solve expressions that are linear in one symbol (``4*s + 1``) for the symbol."""

from __future__ import annotations

from functools import lru_cache

import sympy


@lru_cache(maxsize=4096)
def linear_coefficients(expr: sympy.Basic, symbol_name: str) -> tuple[int, int] | None:
    """Return the slope and offset of an expression that is linear in this symbol and has no other symbol; else None."""
    if [s.name for s in expr.free_symbols] != [symbol_name]:
        return None
    (symbol,) = expr.free_symbols
    slope, offset = expr.coeff(symbol, 1), expr.subs(symbol, 0)
    line = slope.is_Integer and slope != 0 and sympy.expand(expr - slope * symbol - offset) == 0
    return (int(slope), int(offset)) if line and offset.is_Integer else None


def solve_for(expr: object, symbol_name: str, target: int) -> int | None:
    """Return the integer at which a linear expression of a symbol (``4*s + 1``) is ``target``, or None."""
    line = linear_coefficients(expr, symbol_name)
    if line is None or (target - line[1]) % line[0] != 0:
        return None
    return (target - line[1]) // line[0]


def symbol_from_size_code(expr: object, symbol_name: str, size_code: str) -> list[str]:
    """Return Python code that computes a symbol from a size that is linear in it: ``x.shape[1] // 4`` if ``size_code``
    is ``x.shape[1]``; empty if the expression is not linear."""
    line = linear_coefficients(expr, symbol_name)
    if line is None:
        return []
    slope, offset = line
    whole = f"({size_code} {'-' if offset > 0 else '+'} {abs(offset)})" if offset else size_code
    return [f"({whole} // {slope})" if slope != 1 else whole]
