"""Convert symbolic sizes to JSON and back: a sympy expression becomes a list of its function's name and arguments.
The reader accepts a fixed set of functions and evaluates no text.

``s0*2 + 1`` is ``["Add", 1, ["Mul", 2, ["Symbol", "s0", "integer", "positive"]]]``. A name with ``!`` marks a function
that stays unevaluated; sympy would otherwise simplify it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import sympy
from torch.utils._sympy import functions

from pipeline.artifact.json_data import JsonData
from pipeline.errors import ArtifactError

LARGEST = 2**64
MOST_NODES, MOST_DEPTH = 4096, 128
"""The maximum number of nodes and the maximum depth of an expression that is read from a file."""
MOST_BITS = 8192
"""The maximum number of bits that any value in an expression may need, for all sizes."""
SYMBOL = 64
POWER = MOST_BITS // 2
DIVISIONS = ("FloorDiv", "CleanDiv", "CeilDiv", "IntTrueDiv", "FloatTrueDiv", "Mod", "PythonMod", "ModularIndexing")
POWERS = ("Pow", "PowByNatural", "FloatPow", "LShift")
NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
ASSUMPTIONS = ("integer", "nonnegative", "nonzero", "positive", "real")
"""The sympy assumptions that torch.export sets for its symbols."""

IMPLIED = {"positive": ("nonnegative", "nonzero", "real"), "integer": ("real",), "nonnegative": ("real",)}

_SYMPY = ("Add", "Mul", "Pow", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And", "Or", "Not", "Abs", "Piecewise", "floor")
_UNARY = ("acos", "asin", "asinh", "atan", "cos", "cosh", "exp", "log", "log2", "sin", "sinh", "sqrt", "tan", "tanh")
_TORCH = (
    *("CeilDiv", "CeilToInt", "CleanDiv", "FloatPow", "FloatTrueDiv", "FloorDiv", "FloorToInt", "Identity"),
    *("IntTrueDiv", "LShift", "Max", "Min", "Mod", "ModularIndexing", "PowByNatural", "PythonMod", "RShift"),
    *("RoundDecimal", "RoundToInt", "ToFloat", "TruncToFloat", "TruncToInt", "Where"),
    *(f"BitwiseFn_bitwise_{name}" for name in ("and", "or", "xor")),
    *(f"OpaqueUnaryFn_{name}" for name in _UNARY),
)
FUNCTIONS: Mapping[str, Any] = {
    **{name: getattr(functions, name) for name in _TORCH if hasattr(functions, name)},
    **{getattr(sympy, name).__name__: getattr(sympy, name) for name in _SYMPY},
}


def to_json(expr: Any) -> JsonData:
    """Convert an int, float, bool or sympy expression to JSON; raise an `ArtifactError` for unknown functions."""
    if isinstance(expr, (bool, int, float)):
        return expr
    atom = next((write for kind, write in _ATOMS if isinstance(expr, kind)), None)
    if atom is not None:
        return atom(expr)
    name = type(expr).__name__
    if FUNCTIONS.get(name) is not type(expr):
        raise ArtifactError(f"the symbolic size {expr} cannot be saved: saved programs cannot have the function {name}")
    args = list(map(to_json, expr.args))
    return [name if expr.func(*expr.args) == expr else f"{name}!", *args]


@lru_cache(1024)
def _symbol_to_json(expr: Any) -> list[JsonData]:
    known = [name for name in ASSUMPTIONS if getattr(expr, f"is_{name}")]
    return ["Symbol", expr.name, *(n for n in known if not any(n in IMPLIED.get(other, ()) for other in known))]


_ATOMS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (sympy.Symbol, _symbol_to_json),
    (sympy.Integer, int),
    (sympy.Rational, lambda expr: ["Rational", int(expr.p), int(expr.q)]),
    (sympy.Float, float),
    (type(sympy.true), lambda expr: True),
    (type(sympy.false), lambda expr: False),
)


def from_json(data: JsonData) -> Any:
    """Convert JSON to a sympy expression, without evaluation or reordering. Raise an `ArtifactError` if `to_json` never
    returns such JSON, or if a value in the expression could be too large."""
    _BitBound().max_bits(data, MOST_DEPTH)
    return _expression_from_json(data)


def _expression_from_json(data: JsonData) -> Any:
    if not isinstance(data, list):
        return sympy.sympify(data)
    head, *rest = data
    if head == "Symbol":
        return _symbol_from_json(*rest)
    args = list(map(_expression_from_json, rest))
    try:
        return sympy.Rational(*args) if head == "Rational" else FUNCTIONS[head.removesuffix("!")](*args, evaluate=False)
    except (TypeError, ValueError, ArithmeticError, AttributeError, AssertionError) as error:
        raise ArtifactError(f"{str(data)[:80]} is not an expression for a size: {type(error).__name__}") from None


@lru_cache(1024)
def _symbol_from_json(name: str = "", *assumptions: str) -> sympy.Symbol:
    """Return a sympy symbol with these assumptions: ``_symbol_from_json("s0", "integer", "positive")``."""
    if not NAME.fullmatch(name) or not {*assumptions} <= {*ASSUMPTIONS}:
        raise ArtifactError(f"{name[:80]!r} is not a symbol of a size such as s0")
    return sympy.Symbol(name, **dict.fromkeys(assumptions, True))


class _BitBound:
    """Compute an upper bound for the bits of every value in an expression, before sympy builds the expression, since
    powers let a small file request huge numbers. A symbol counts as 64 bits."""

    def __init__(self) -> None:
        self.nodes = 0

    def max_bits(self, data: JsonData, depth: int) -> float:
        """Return an upper bound for the bits of an expression's values; refuse more than ``depth`` nested levels."""
        self.nodes += 1
        if isinstance(data, (bool, int, float)):
            if abs(data) >= LARGEST:
                raise ArtifactError(f"{str(data)[:40]} is too large for a size")
            return math.frexp(data)[1]
        if not isinstance(data, list) or not data or not isinstance(data[0], str):
            raise ArtifactError(f"{str(data)[:80]} is not an expression for a size")
        if not depth or self.nodes > MOST_NODES:
            raise ArtifactError(f"the expression for a size has more than {MOST_NODES} parts, or {MOST_DEPTH} levels")
        head, *rest = data
        if head == "Symbol":
            _symbol_from_json(*rest) if all(type(part) is str for part in rest) else _symbol_from_json()
            return SYMBOL
        bits = [self.max_bits(part, depth - 1) for part in rest]
        found = self.max_bits_of_function(head.removesuffix("!"), rest, bits)
        if found > MOST_BITS:
            raise ArtifactError(f"computing the size {str(data)[:80]} can need a number of more than {MOST_BITS} bits")
        return found

    def max_bits_of_function(self, function_name: str, args: list[JsonData], argument_bits: list[float]) -> float:
        """Return an upper bound for the bits of a function's value, given the bits of its arguments."""
        if function_name == "Rational" and len(args) == 2 and all(type(arg) is int for arg in args) and args[1] != 0:
            return max(argument_bits)
        is_small = bool(args) and type(args[-1]) is int and abs(args[-1]) <= 64
        if function_name not in FUNCTIONS or (function_name == "RoundDecimal" and not is_small):
            raise ArtifactError(f"{str([function_name, *args])[:80]} is not an expression for a size")
        if function_name in DIVISIONS and any(arg == 0 and type(arg) is not bool for arg in args[1:]):
            raise ArtifactError(f"the expression {str([function_name, *args])[:80]} for a size divides by 0")
        if function_name in POWERS and len(args) == 2:
            largest = abs(args[1]) if isinstance(args[1], (int, float)) else 2.0 ** min(argument_bits[1], 64)
            if _has_symbol(args[1]):  # `pipeline.aten.calls.checked_power` checks it at run time
                return POWER
            return argument_bits[0] * max(largest, 1) if function_name != "LShift" else argument_bits[0] + largest
        return max(argument_bits, default=0) + len(argument_bits) if function_name == "Add" else sum(argument_bits)


def _has_symbol(data: JsonData) -> bool:
    """Return whether the JSON of an expression, such as ``["Add", ["Symbol", …], 1]``, contains a symbol."""
    return isinstance(data, list) and (data[0] == "Symbol" or any(map(_has_symbol, data[1:])))
