"""Split sympy expressions of sizes into the integer operations of elementwise layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import sympy
from torch.utils._sympy.functions import FloorDiv

from pipeline.network.context import ConversionContext, NetworkError
from pipeline.shapes.linear import linear_coefficients
from pipeline.trt import trt

Operation: TypeAlias = tuple[str, tuple[Any, ...]]
"""The name of a ``trt.ElementWiseOperation``, and its operands from left to right."""


def operation_of(expr: Any) -> Operation:
    """Return the elementwise operation that computes a size expression; raise a ``NetworkError`` if there is none."""
    function = type(expr).__name__
    if function == "Pow" and expr.exp.is_Integer and expr.exp > 0:
        return "PROD", (expr.base,) * int(expr.exp)
    if function == "Mul" and any(map(_is_reciprocal, expr.args)):
        return "FLOOR_DIV", _numerator_and_denominator(expr)
    if function not in _OPERATIONS:
        raise NetworkError(f"the size {expr} cannot be computed in an engine: {function} is not supported")
    return _OPERATIONS[function](*expr.args)


def solve_for_symbol(ctx: ConversionContext, symbol: sympy.Symbol) -> Any:
    """Return ``(size - b) // a``, the value of ``symbol``, if some tensor's dim has the size ``a * symbol + b``; raise
    a `NetworkError` if none has."""
    sizes = ((tensor, dim, e) for tensor, shape in ctx.shapes.values() for dim, e in enumerate(shape))
    for tensor, dim, size in sizes:
        line = None if isinstance(size, int) else linear_coefficients(size, symbol.name)
        if line is not None:
            ctx.symbols.setdefault(str(size), (tensor, dim))
            return FloorDiv(sympy.Symbol(str(size), integer=True) - line[1], sympy.Integer(line[0]))
    raise NetworkError(f"the size {symbol} cannot be read from any input of the engine")


def tensor_and_dim_of_size(ctx: ConversionContext, expr: sympy.Expr) -> tuple[trt.ITensor, int] | None:
    """Return (tensor, dim) with the data-dependent size ``expr``; None if no tensor has it, or inputs determine it."""
    if all(str(symbol) in ctx.symbols for symbol in expr.free_symbols):
        return None
    sizes = ((tensor, dim, e) for tensor, shape in ctx.shapes.values() for dim, e in enumerate(shape))
    return next(((tensor, dim) for tensor, dim, size in sizes if size == expr), None)


def _numerator_and_denominator(expr: Any) -> tuple[Any, Any]:
    """Return the numerator and denominator of an integer quotient, from its product of factors and reciprocals."""
    over = [a.base if a.is_Pow else sympy.Integer(a.q) for a in expr.args if _is_reciprocal(a)]
    above = [sympy.Integer(a.p) if a.is_Rational else a for a in expr.args if not _is_reciprocal(a) or a.is_Rational]
    return sympy.Mul(*above), sympy.Mul(*over)


def _is_reciprocal(factor: Any) -> bool:
    return bool((factor.is_Pow and factor.exp == -1) or (factor.is_Rational and not factor.is_Integer))


def _floor_division_operation(a: Any, b: Any) -> Operation:
    """Return the `Operation` for ``a // b``: ``("FLOOR_DIV", (a, b))``."""
    return "FLOOR_DIV", (a, b)


def _remainder_as_subtraction(a: Any, b: Any) -> Operation:
    """Return the `Operation` for ``a - (a // b) * b``, the remainder, for which TensorRT has no operation itself."""
    return "SUB", (a, sympy.Mul(FloorDiv(a, b), b, evaluate=False))


_OPERATIONS: Mapping[str, Callable[..., Operation]] = {
    "Add": lambda *terms: ("SUM", terms),
    "Mul": lambda *factors: ("PROD", factors),
    "Max": lambda *values: ("MAX", values),
    "Min": lambda *values: ("MIN", values),
    "Abs": lambda a: ("MAX", (a, -a)),
    "FloorDiv": _floor_division_operation,
    "CleanDiv": _floor_division_operation,
    "IntTrueDiv": _floor_division_operation,
    "CeilDiv": lambda a, b: _floor_division_operation(a + b - 1, b),
    "Mod": _remainder_as_subtraction,
    "PythonMod": _remainder_as_subtraction,
    "ModularIndexing": lambda a, b, c: _remainder_as_subtraction(FloorDiv(a, b), c),
}
