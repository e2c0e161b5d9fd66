"""Sizes as JSON: a sympy expression is a list of its function's name and its arguments. Reading accepts a fixed set of
functions, and evaluates no text.

``s0*2 + 1`` is ``["Add", 1, ["Mul", 2, ["Symbol", "s0", "integer", "positive"]]]``. A name with ``!`` is of a function
whose arguments are left as they are, where sympy would make another expression of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import sympy
from torch.utils._sympy import functions

from pipeline.artifact.json_data import JsonData
from pipeline.errors import ArtifactError

LARGEST = 2**64
NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
ASSUMPTIONS = ("integer", "nonnegative", "nonzero", "positive", "real")
"""What torch.export assumes of its symbols."""

IMPLIED = {"positive": ("nonnegative", "nonzero", "real"), "integer": ("real",), "nonnegative": ("real",)}

_SYMPY = ("Add", "Mul", "Pow", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And", "Or", "Not", "Abs", "Piecewise", "floor")
_TORCH = (
    *("CeilDiv", "CeilToInt", "CleanDiv", "FloatPow", "FloatTrueDiv", "FloorDiv", "FloorToInt", "Identity"),
    *("IntTrueDiv", "LShift", "Max", "Min", "Mod", "ModularIndexing", "PowByNatural", "PythonMod", "RShift"),
    *("RoundDecimal", "RoundToInt", "ToFloat", "TruncToFloat", "TruncToInt", "Where"),
    *(f"BitwiseFn_bitwise_{name}" for name in ("and", "or", "xor")),
    *(
        f"OpaqueUnaryFn_{name}"
        for name in ("acos", "asin", "asinh", "atan", "cos", "cosh", "exp", "log", "log2", "sin", "sinh", "sqrt", "tan")
    ),
    "OpaqueUnaryFn_tanh",
)


def _functions() -> dict[str, Any]:
    known = {name: getattr(functions, name) for name in _TORCH if hasattr(functions, name)}
    known |= {getattr(sympy, name).__name__: getattr(sympy, name) for name in _SYMPY}
    return known


FUNCTIONS: Mapping[str, Any] = _functions()


def written(expr: Any) -> JsonData:
    """An int, float, bool or sympy expression as JSON.

    Raises:
        ArtifactError: it has a function that cannot be read back.
    """
    if isinstance(expr, (bool, int, float)):
        return expr
    atom = next((write for kind, write in _ATOMS if isinstance(expr, kind)), None)
    if atom is not None:
        return atom(expr)
    name = type(expr).__name__
    if FUNCTIONS.get(name) is not type(expr):
        raise ArtifactError(f"the size {expr} cannot be kept: it has the function {name}")
    args = list(map(written, expr.args))
    return [name if expr.func(*expr.args) == expr else f"{name}!", *args]


@lru_cache(1024)
def _symbol(expr: Any) -> list[JsonData]:
    """A symbol with its assumptions, without those that follow from others."""
    known = [name for name in ASSUMPTIONS if getattr(expr, f"is_{name}")]
    return ["Symbol", expr.name, *(n for n in known if not any(n in IMPLIED.get(other, ()) for other in known))]


_ATOMS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (sympy.Symbol, _symbol),
    (sympy.Integer, int),
    (sympy.Rational, lambda expr: ["Rational", int(expr.p), int(expr.q)]),
    (sympy.Float, float),
    (type(sympy.true), lambda expr: True),
    (type(sympy.false), lambda expr: False),
)


def read(data: JsonData) -> Any:
    """Read an expression from JSON; a number comes back as sympy's.

    Raises:
        ArtifactError: the JSON is not an expression that this module writes.
    """
    if isinstance(data, (bool, int, float)):
        if not isinstance(data, bool) and abs(data) >= LARGEST:
            raise ArtifactError(f"{str(data)[:40]} is no size")
        return sympy.sympify(data)
    if not isinstance(data, list) or not data or not isinstance(data[0], str):
        raise ArtifactError(f"{str(data)[:80]} is no expression")
    head, *rest = data
    if head == "Symbol":
        return _read_symbol(*rest) if all(type(part) is str for part in rest) else _read_symbol()
    args = list(map(read, rest))
    if head == "Rational" and len(args) == 2 and all(a.is_Integer for a in args) and args[1] != 0:
        return sympy.Rational(*args)
    function = FUNCTIONS.get(head.removesuffix("!"))
    if function is None or _is_too_large(head, args):
        raise ArtifactError(f"{str(data)[:80]} is no expression")
    try:
        return function(*args, evaluate=False) if head.endswith("!") else function(*args)
    except (TypeError, ValueError, ArithmeticError, AttributeError, AssertionError) as error:
        raise ArtifactError(f"{str(data)[:80]} is no expression: {type(error).__name__}") from None


@lru_cache(1024)
def _read_symbol(name: str = "", *assumed: str) -> sympy.Symbol:
    if not NAME.fullmatch(name) or not {*assumed} <= {*ASSUMPTIONS}:
        raise ArtifactError(f"{name[:80]!r} is no symbol")
    return sympy.Symbol(name, **dict.fromkeys(assumed, True))


def _is_too_large(head: str, args: list[Any]) -> bool:
    """Whether a power, or a shift, is of numbers that would fill memory."""
    powers = ("Pow", "PowByNatural", "FloatPow", "LShift")
    return head.rstrip("!") in powers and len(args) == 2 and args[1].is_number and bool(abs(args[1]) > 64)
