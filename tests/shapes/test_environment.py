"""The shape environment: sound bounds, attained where they can be; relations; how it prints."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._sympy.functions import CeilToInt, FloorDiv, IntTrueDiv, Max, Min, Mod, ToFloat, TruncToInt

from pipeline.frozen import FrozenDict
from pipeline.shapes.environment import (
    MAX_COMBINATIONS,
    Range,
    ShapeEnvironment,
    Symbol,
    always_holds,
    bounds,
    compile_expression,
    evaluate_size,
)
from pipeline.shapes.linear import solve_for

S = [sympy.Symbol(f"s{i}", integer=True, positive=True) for i in range(3)]


def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Arithmetic as torch.export writes it."""
    number = st.integers(1, 5)
    return st.one_of(
        st.builds(lambda a, b: a + b, inner, inner | number),
        st.builds(lambda a, b: a - b, inner, inner | number),
        st.builds(lambda a, b: a * b, inner, inner | number),
        st.builds(FloorDiv, inner, number),
        st.builds(lambda a, n: Mod(a * a, n), inner, number),
        st.builds(lambda a, b: Max(a, sympy.sympify(b)), inner, inner | number),
        st.builds(lambda a, b: Min(a, sympy.sympify(b)), inner, inner | number),
        st.builds(lambda a, n: CeilToInt(IntTrueDiv(a, sympy.Integer(n))), inner, number),
        st.builds(lambda a, n: TruncToInt(ToFloat(a) * (n / 4)), inner, number),
    )


EXPRESSIONS = st.recursive(st.sampled_from(S), grown, max_leaves=5)
RANGES = st.lists(st.integers(0, 9), min_size=3, max_size=3).map(lambda ends: Range(*sorted(ends)))
ENVIRONMENTS = st.tuples(RANGES, RANGES, RANGES).map(lambda r: {str(s): each for s, each in zip(S, r, strict=True)})


def points(symbols: dict[str, Range], names: list[str]) -> list[dict[str, int]]:
    """Every combination of sizes."""
    values = itertools.product(*(range(symbols[n].min, symbols[n].max + 1) for n in names))
    return [dict(zip(names, each, strict=True)) for each in values]


@given(EXPRESSIONS, ENVIRONMENTS)
@settings(max_examples=150)
def test_bounds_are_sound_and_attained(expr: Any, symbols: dict[str, Range]) -> None:
    found = bounds(sympy.sympify(expr) if not isinstance(expr, int) else expr, symbols)
    names = [] if isinstance(expr, int) else sorted(s.name for s in expr.free_symbols)
    values = [evaluate_size(expr, point) for point in points(symbols, names)]
    assert found.min <= min(values) <= max(values) <= found.max
    assert found.min <= found.opt <= found.max
    if names and len(values) <= MAX_COMBINATIONS:
        opt = evaluate_size(expr, {n: symbols[n].opt for n in names})
        assert found.opt == opt
        assert (found.min, found.max) == (min(values), max(values))


@given(EXPRESSIONS, ENVIRONMENTS)
@settings(max_examples=50)
def test_a_function_of_sizes_is_what_sympy_says(expr: Any, symbols: dict[str, Range]) -> None:
    if not isinstance(expr, sympy.Expr) or expr.is_number:
        return
    point = {s.name: symbols[s.name].opt for s in expr.free_symbols}
    exact = expr.xreplace({s: sympy.Integer(point[s.name]) for s in expr.free_symbols})
    assert evaluate_size(expr, point) == int(exact)


LARGE = {"s0": Range(1, 512, 65536), "s1": Range(2, 8, 1000), "s2": Range(0, 1, 7)}


@pytest.mark.parametrize(
    ("expr", "range"),
    [
        (2 * S[0], Range(2, 1024, 131072)),
        (FloorDiv(S[0], 2) + 1, Range(1, 257, 32769)),
        (S[0] * S[1], Range(2, 4096, 65536000)),
        (S[0] * S[1] + S[0], Range(3, 4608, 65601536)),
        (Min(S[0], S[1]), Range(1, 8, 1000)),
        (Max(S[0], S[1]), Range(2, 512, 65536)),
        (Mod(S[0], 8), Range(0, 0, 7)),
        (S[2] - FloorDiv(S[2], 2), Range(0, 1, 4)),
        (S[1] - FloorDiv(S[1], 2), Range(1, 4, 500)),
        (-FloorDiv(-S[0], 16), Range(1, 32, 4096)),
        (S[0] - 1, Range(0, 511, 65535)),
    ],
    ids=str,
)
def test_bounds_are_tight_where_sizes_grow_one_way(expr: Any, range: Range) -> None:
    assert bounds(expr, LARGE) == range


def test_a_division_that_no_call_makes_has_bounds() -> None:
    found = bounds(FloorDiv(S[0], S[2]), LARGE)
    assert found.min <= 0
    assert found.max >= 65536


def environment(**ranges: Range) -> ShapeEnvironment:
    return ShapeEnvironment(
        FrozenDict({name: Symbol(range, range.opt, (f"{name[1:]}.shape[0]",)) for name, range in ranges.items()})
    )


def test_a_relation_of_one_symbol_narrows_its_range_and_is_kept_where_the_range_does_not_say_it() -> None:
    s = S[0]
    quarters = environment(s0=Range(1, 6, 30)).add_conditions(sympy.Eq(Mod(s, 4), 0), sympy.Eq(s, 4 * FloorDiv(s, 4)))
    assert quarters["s0"] == Range(4, 4, 28)
    assert [str(r) for r in quarters.relations] == ["(0.shape[0] % 4) == 0"]
    assert not quarters.relations[0].holds({"s0": 6})
    many = environment(s0=Range(1, 1, 30)).add_conditions(sympy.Ne(s, 1, evaluate=False))
    assert many["s0"] == Range(2, 2, 30)
    assert not many.relations


def test_a_relation_of_two_symbols_is_kept() -> None:
    both = environment(s0=Range(1, 6, 30), s1=Range(1, 2, 4)).add_conditions(S[0] >= S[1], S[0] + S[1] >= 2)
    assert str(both) == "s0: 1..6..30 (0.shape[0])\ns1: 1..2..4 (1.shape[0])\n0.shape[0] >= 1.shape[0]"
    assert both["s0"] == Range(1, 6, 30)
    assert list(both) == ["s0", "s1"]


def test_a_relation_of_two_symbols_leaves_ends_that_occur() -> None:
    a, b = sympy.symbols("a b", integer=True)
    env = ShapeEnvironment.from_ranges({"a": Range(1, 2, 9), "b": Range(1, 2, 4)})
    assert env.add_conditions(sympy.Eq(a, 2 * b, evaluate=False))["a"] == Range(2, 2, 8)
    both = env.add_conditions(sympy.Eq(a + b, 3, evaluate=False), sympy.Eq(a * b, 2, evaluate=False), sympy.Ge(a, 2))
    assert (both["a"], both["b"]) == (Range(2, 2, 2), Range(1, 1, 1))
    assert env.add_conditions(sympy.Eq(a + b, 30, evaluate=False))["a"] == Range(1, 2, 9)


def test_what_always_holds_is_seen() -> None:
    symbols = {"s0": Range(2, 4, 8), "s1": Range(2, 2, 100000)}
    assert always_holds(sympy.Ge(S[0], 2), symbols)
    assert always_holds(sympy.Ne(Mod(S[0] * 2, 2), 1, evaluate=False), symbols)
    assert not always_holds(sympy.Ge(S[0], 3), symbols)
    assert not always_holds(sympy.Eq(Mod(S[1], 2), 0), symbols)


def test_a_line_is_solved_for_whole_numbers() -> None:
    assert solve_for(4 * S[0] - 4, "s0", 8) == 3
    assert solve_for(4 * S[0] - 4, "s0", 9) is None
    assert solve_for(S[0] ** 2, "s0", 9) is None
    assert compile_expression(4 * S[0])({"s0": 3}) == 12
