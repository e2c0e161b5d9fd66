"""Define ``ShapeEnvironment``: the symbols of dynamic sizes, with their ranges and relations.
A program has it from capture to the saved file.

A dynamic size is a symbol, or an expression over symbols. The environment has the range of each symbol, the input dims
from which the symbol is read, and the relations that a call must meet. All other ranges are derived from these.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import sympy
import torch
from attrs import evolve, field, frozen
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from pipeline.aten.calls import checked_power, checked_shift
from pipeline.aten.tensor_type import TensorType
from pipeline.aten.types import Argument
from pipeline.frozen import FrozenDict

Expr: TypeAlias = int | sympy.Expr
Shape: TypeAlias = tuple[Expr, ...]

LARGEST = 2**63 - 1
"""The bound that stands for a missing upper bound of an expression: the largest int64."""

MAX_SIZE = 2**31 - 2
"""The largest size that engines are built for; 2**31 - 1 stands for a size without an upper bound."""

MAX_COMBINATIONS = 4096
"""The maximum number of combinations of sizes for which an expression is evaluated to find its bounds."""


def expression(size: Argument) -> Expr:
    """Return the size of a fake tensor as an int, or as a sympy expression over the program's symbols."""
    if isinstance(size, torch.SymInt):
        size = size.node.expr
    return int(size) if isinstance(size, int) or size.is_number else size


def upper_bound(size: Argument) -> float:
    """Return the largest possible value of a fake tensor's size; infinite if it has no upper bound."""
    if not isinstance(size, torch.SymInt):
        return float(size)
    bound = size.node.shape_env.bound_sympy(size.node.expr).upper
    return float(bound) if bound.is_number else math.inf


def as_expr(value: torch.SymInt | torch.SymFloat | torch.SymBool | sympy.Basic) -> Any:
    """Return the sympy expression of a number that Python computes from sizes."""
    return value if isinstance(value, sympy.Basic) else value.node.expr


HOST_FUNCTIONS = frozenset({"CeilToInt", "FloorToInt", "TruncToInt", "RoundToInt"})
"""sympy functions from floats to ints. Engines have no float64, so the host computes them and passes the ints."""

_FLOAT_FUNCTIONS = ("ToFloat", "IntTrueDiv", "FloatTrueDiv", "FloatPow", "Float", "OpaqueUnaryFn")


def is_host_int(expr: object) -> bool:
    """Return whether an expression is an int from floats (``int(s0 * 0.7)``), which the host computes for engines."""
    return type(expr).__name__ in HOST_FUNCTIONS


def engine_operands(expr: Expr) -> Iterator[object]:
    """Yield the operands from which an engine computes an expression: symbols, and ints computed on the host."""
    if isinstance(expr, int):
        return
    if expr.is_Symbol or is_host_int(expr):
        yield expr
    else:
        for part in expr.args:
            yield from engine_operands(part)


def shape_of(value: torch.Tensor | TensorType) -> Shape:
    """Return the sizes of a (fake) tensor: ints, or sympy expressions if they are dynamic."""
    return tuple(expression(size) for size in value.shape)


def sizes_in(value: object) -> Shape:
    """Return the sizes of a tensor, a dynamic int as the only size, or () for any other value."""
    if isinstance(value, torch.Tensor):
        return shape_of(value)
    return (expression(value),) if isinstance(value, torch.SymInt) else ()


@frozen
class Range:
    """The range of a size: ``min`` and ``max`` are guaranteed, ``opt`` is the size that engines are tuned for."""

    min: int
    opt: int
    max: int

    def __str__(self) -> str:
        return f"{self.min}..{self.opt}..{self.max}"


Symbols: TypeAlias = Mapping[str, Range]


@frozen
class Symbol:
    """A dynamic size: its range, its value in the example (``hint``; None if data-dependent), and its origin in words:
    the input dims that equal or determine the size (``x.shape[0]``), or the node whose result determines it."""

    range: Range
    hint: int | None = None
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.range}" + (f" ({', '.join(self.places)})" if self.places else "")


@frozen
class Relation:
    """A condition on symbols that every call must meet, and the condition in the user's terms."""

    condition: Any
    words: str

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the relation holds for these values of the symbols. Takes about 1 µs."""
        try:
            return bool(compile_expression(self.condition)(sizes))
        except ArithmeticError:  # a division by a size of 0
            return False

    @property
    def symbols(self) -> frozenset[str]:
        """The names of the symbols in the condition."""
        return frozenset(s.name for s in self.condition.free_symbols)

    def __str__(self) -> str:
        return self.words


@frozen
class ShapeEnvironment(Mapping[str, Range]):
    """The symbols of a program with their ranges, and the relations between symbols. As a mapping: name → range."""

    symbols: FrozenDict[str, Symbol] = field(factory=FrozenDict)
    relations: tuple[Relation, ...] = ()

    @classmethod
    def from_ranges(cls, ranges: Mapping[str, Range]) -> ShapeEnvironment:
        """Create an environment with a symbol for each range, and without relations."""
        return cls(FrozenDict({name: Symbol(range) for name, range in ranges.items()}))

    def __getitem__(self, name: str) -> Range:
        return self.symbols[name].range

    def __iter__(self) -> Iterator[str]:
        return iter(self.symbols)

    def __len__(self) -> int:
        return len(self.symbols)

    def bounds(self, expr: Expr) -> Range:
        """Return the smallest, optimal and largest value of an expression over these symbols."""
        return bounds(expr, self)

    @property
    def user_names(self) -> dict[str, str]:
        """Return, by symbol, the user's name of each dynamic size that has one: ``{"s0": "x.shape[0]"}``."""
        return {name: s.places[0] for name, s in self.symbols.items() if s.places}

    def words(self, expr: object) -> str:
        """Return an expression as text in the user's names for sizes: ``x.shape[0] % 4 == 0``."""
        return expression_text(expr, self.user_names)

    def lines(self) -> Iterator[str]:
        """Yield a line for each dynamic size (``x.shape[0]: 1..4..8 (also y.shape[0])``) and for each relation."""
        for name, symbol in self.symbols.items():
            first, *others = symbol.places or (name,)
            yield f"{first}: {symbol.range}" + (f" (also {', '.join(others)})" if others else "")
        yield from map(str, self.relations)

    def add_conditions(self, *conditions: object) -> ShapeEnvironment:
        """Return the environment with additional conditions. A condition on a single symbol narrows the symbol's range
        to the sizes that meet it (1..10 under ``s % 4 == 0`` becomes 4..8); conditions that ranges cannot express
        become relations."""
        symbols, relations = dict(self.symbols), list(self.relations)
        for condition in dict.fromkeys(conditions):
            relation = Relation(condition, self.words(condition))
            if len(relation.symbols) == 1:
                (name,) = relation.symbols
                symbols[name] = evolve(symbols[name], range=_narrow_range(symbols[name].range, name, relation))
            if not always_holds(condition, {n: s.range for n, s in symbols.items()}, relations):
                relations.append(relation)
        for relation in relations:
            for name, found in _related_ranges({n: s.range for n, s in symbols.items()}, relation, relations).items():
                symbols[name] = evolve(symbols[name], range=found)
        return ShapeEnvironment(FrozenDict(symbols), tuple(relations))

    def __str__(self) -> str:
        rows = [f"{name}: {symbol}" for name, symbol in self.symbols.items()]
        return "\n".join([*rows, *map(str, self.relations)])


def _narrow_range(old: Range, symbol_name: str, relation: Relation) -> Range:
    """Return a symbol's range, narrowed to the values that meet a relation on this symbol; ``old`` if none does."""

    def first(values: range) -> int | None:
        return next((v for v in itertools.islice(values, MAX_COMBINATIONS) if relation.holds({symbol_name: v})), None)

    low, high = first(range(old.min, old.max + 1)), first(range(old.max, old.min - 1, -1))
    if low is None or high is None:
        return old
    below, above = first(range(old.opt, low - 1, -1)), first(range(old.opt, high + 1))
    return Range(low, below if below is not None else above if above is not None else low, high)


def _value_combinations(ranges: Symbols) -> Iterator[dict[str, int]] | None:
    """Return an iterator over all combinations of the symbols' values; None if these exceed ``MAX_COMBINATIONS``."""
    if math.prod(r.max - r.min + 1 for r in ranges.values()) > MAX_COMBINATIONS:
        return None
    values = itertools.product(*(range(r.min, r.max + 1) for r in ranges.values()))
    return (dict(zip(ranges, point, strict=True)) for point in values)


def _related_ranges(symbol_ranges: Symbols, relation: Relation, relations: Sequence[Relation]) -> dict[str, Range]:
    """Return, for each symbol of a relation, the range of its values for which all relations between these symbols
    hold; empty if there are too many combinations to try, or if no combination meets the relations."""
    given = {name: symbol_ranges[name] for name in sorted(relation.symbols)}
    points = _value_combinations(given) if len(given) > 1 else None
    held = [r for r in relations if r.symbols <= given.keys()]
    found = [point for point in points or () if all(r.holds(point) for r in held)]
    ends = {n: (min(point[n] for point in found), max(point[n] for point in found)) for n in given if found}
    return {n: Range(low, min(max(given[n].opt, low), high), high) for n, (low, high) in ends.items()}


class _SizePrinter(PythonPrinter):
    """Prints size expressions as Python code, with the given names for symbols."""

    def __init__(self, names: Callable[[str], str]) -> None:
        super().__init__()
        self.names = names

    def _print_Symbol(self, expr: sympy.Symbol) -> str:  # noqa: N802 - sympy's way
        return self.names(expr.name)

    def _print_ToFloat(self, expr: sympy.Expr) -> str:  # noqa: N802 - sympy's way
        """Return the code ``float(x)`` for torch's ``ToFloat(x)``."""
        return f"float({self._print(expr.args[0])})"

    def _print_Where(self, expr: sympy.Expr) -> str:  # noqa: N802 - sympy's way
        """Return the code ``(a if c else b)`` for torch's ``Where(c, a, b)``."""
        condition, then, other = map(self._print, expr.args)
        return f"({then} if {condition} else {other})"


class _CodePrinter(_SizePrinter):
    """Prints size expressions as Python code to evaluate, in which powers and shifts refuse huge results."""

    def _print_Pow(self, expr: sympy.Expr) -> str:  # noqa: N802 - sympy's way
        """Return the code of a power: an ordinary one for exponents of 1 to 8, else a call of ``power``."""
        whole = expr.args[1].is_Integer and 0 < expr.args[1] <= 8
        text: str = super()._print_Pow(expr) if whole else self._print_PowByNatural(expr)
        return text

    def _print_PowByNatural(self, expr: sympy.Expr) -> str:  # noqa: N802 - sympy's way
        """Return the code ``power(base, exponent)``; `checked_power` refuses huge results."""
        return f"power({', '.join(map(self._print, expr.args))})"

    _print_FloatPow = _print_PowByNatural  # noqa: N815 - sympy's way

    def _print_LShift(self, expr: sympy.Expr) -> str:  # noqa: N802 - sympy's way
        """Return the code ``shifted(value, bits)``; `checked_shift` refuses huge results."""
        return f"shifted({', '.join(map(self._print, expr.args))})"


_CODE_NAMES = {"math": math, "torch": torch, "power": checked_power, "shifted": checked_shift}


def expression_text(expr: object, names: Mapping[str, str]) -> str:
    """Return an expression as Python code, with the given names for symbols, or else the symbols' names."""
    if isinstance(expr, int):
        return str(expr)
    text: str = _SizePrinter(lambda name: names.get(name, name)).doprint(expr)
    return text


@lru_cache(maxsize=4096)
def compile_expression(expr: object) -> Callable[[Mapping[str, int]], Any]:
    """Compile an expression or condition to a Python function of its symbols' values, by name. Takes 0.2 ms; cached."""
    names: list[str] = []  # data, not source: a program from a file chooses them

    def place(name: str) -> str:
        names.append(name)
        return f"s[n[{len(names) - 1}]]"

    source = _CodePrinter(place).doprint(expr)
    is_real = any(type(part).__name__.startswith(_FLOAT_FUNCTIONS) for part in sympy.preorder_traversal(expr))
    if isinstance(expr, sympy.Expr) and not is_real:
        source = f"int({source})"  # a fraction (``s0*s1/2``) that torch.export has proved to be an integer
    made: Callable[[Mapping[str, int]], Argument] = eval(f"lambda s: {source}", {**_CODE_NAMES, "n": names})
    return made


def evaluate_size(expr: Expr, sizes: Mapping[str, int]) -> int:
    """Return the value of a size for these values of the symbols. Takes about 1 µs, less for an int or a symbol."""
    return int(evaluate_number(expr, sizes))


def evaluate_number(expr: sympy.Basic, sizes: Mapping[str, int]) -> int | float | bool:
    """Return the value of an int, float or bool that Python computes from sizes. Takes about 1 µs."""
    if isinstance(expr, int | float):
        return expr
    made: int | float | bool = sizes[expr.name] if expr.is_Symbol else compile_expression(expr)(sizes)
    return made


def bounds(expr: Expr, symbol_ranges: Symbols) -> Range:
    """Return the bounds of an expression over ``symbol_ranges``, and its value where each symbol is its ``opt``.

    The bounds are valid for every expression. They are tight if each symbol occurs once, or if the expression is
    monotonic in each symbol (``s0*s1 + s0``), or if there are at most ``MAX_COMBINATIONS`` combinations of sizes.
    """
    if isinstance(expr, int):
        return Range(expr, expr, expr)
    if expr.is_Symbol:
        return symbol_ranges[expr.name]
    return _cached_bounds(expr, tuple((s, symbol_ranges[s.name]) for s in sorted(expr.free_symbols, key=str)))


@lru_cache(maxsize=16384)
def _cached_bounds(expr: sympy.Expr, ranges: tuple[tuple[sympy.Symbol, Range], ...]) -> Range:
    low, high = _exact_bounds(expr, ranges) or _term_bounds(expr, ranges) or _interval_bounds(expr, ranges)
    opt = _evaluate_or_none(expr, {s.name: r.opt for s, r in ranges})
    return Range(low, low if opt is None else min(max(opt, low), high), high)


def _term_bounds(expr: sympy.Expr, ranges: tuple[tuple[sympy.Symbol, Range], ...]) -> tuple[int, int] | None:
    """Return (minimum, maximum) of a sum in which a term divides by a size (``s0 + 8 // s1``): the sums of the terms'
    bounds. None for other expressions."""
    if not expr.is_Add or not _divisors(expr):
        return None
    symbols = {s.name: r for s, r in ranges}
    terms = [bounds(int(term) if term.is_Integer else term, symbols) for term in expr.args]
    return max(sum(t.min for t in terms), -LARGEST), min(sum(t.max for t in terms), LARGEST)


def _divisors(expr: sympy.Expr) -> set[sympy.Expr]:
    """Return the divisors of an expression, such as ``s0`` in ``n // s0``; none if it has conditional parts."""
    if "Where" in str(expr) or expr.has(sympy.Piecewise):
        return set()
    return {e.args[1] for e in sympy.preorder_traversal(expr) if type(e).__name__ in ("FloorDiv", "Mod", "PythonMod")}


def _interval_bounds(expr: sympy.Expr, ranges: tuple[tuple[sympy.Symbol, Range], ...]) -> tuple[int, int]:
    """Return bounds of an expression by interval arithmetic, clipped to int64; ranges of divisors omit 0."""
    divisors = _divisors(expr)
    ends = {s: (r.min if r.min != 0 or s not in divisors else min(1, r.max), r.max) for s, r in ranges}
    found = bound_sympy(expr, {s: ValueRanges(*both) for s, both in ends.items()})
    low, high = (max(min(end, LARGEST), -LARGEST) for end in (found.lower, found.upper))  # int_oo says it is finite
    return math.floor(low), math.ceil(high)


def _exact_bounds(expr: sympy.Basic, ranges: tuple[tuple[sympy.Symbol, Range], ...]) -> tuple[int, int] | None:
    """Return exact bounds by trying all sizes, if interval bounds would be loose and there are few sizes; else None."""
    once = all(expr.count(s) <= 1 for s, _ in ranges) and not expr.has(sympy.Mod) and "Mod" not in str(expr)
    points = None if once else _value_combinations({s.name: r for s, r in ranges})
    known = [value for point in points or () if (value := _evaluate_or_none(expr, point)) is not None]
    return (min(known), max(known)) if known else None


def _evaluate_or_none(expr: object, sizes: Mapping[str, int]) -> int | None:
    """Return the value of an expression for these sizes; None if it divides by zero."""
    try:
        return int(compile_expression(expr)(sizes))
    except (ArithmeticError, ValueError):  # a division by zero: no call has these sizes
        return None


def always_holds(condition: sympy.Basic, symbol_ranges: Symbols, relations: Sequence[Relation] = ()) -> bool:
    """Return whether a condition provably holds for all values of its symbols that meet ``relations``."""
    if condition in (True, sympy.true):
        return True
    given = [(s, symbol_ranges[s.name]) for s in sorted(condition.free_symbols, key=str)]
    found = bound_sympy(condition, {s: ValueRanges(r.min, r.max) for s, r in given})
    if found.lower in (True, sympy.true):
        return True
    ranges, wanted = {s.name: r for s, r in given}, Relation(condition, "")
    if (points := _value_combinations(ranges)) is None:
        return False
    known = [r for r in relations if r.symbols <= ranges.keys()]
    return all(wanted.holds(point) for point in points if all(r.holds(point) for r in known))
