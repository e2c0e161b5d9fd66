"""Sizes as expressions: each is taken apart into operations on whole numbers that give its value."""

from __future__ import annotations

import functools
import operator
from typing import Any

import pytest
import sympy
from torch.utils._sympy.functions import CeilDiv, FloorDiv, Mod, ModularIndexing, PythonMod

from pipeline.impl.expression import operation_of
from pipeline.network.context import NetworkError

A, B = sympy.symbols("s0 s1", positive=True, integer=True)
LAYERS = {
    "SUM": operator.add,
    "SUB": operator.sub,
    "PROD": operator.mul,
    "FLOOR_DIV": operator.floordiv,
    "MAX": max,
    "MIN": min,
}
EXPRESSIONS = {
    "sum": (A + 2 * B - 3, lambda a, b: a + 2 * b - 3),
    "power": (A**3, lambda a, b: a**3),
    "fraction": (A * (A + 1) / 2, lambda a, b: a * (a + 1) // 2),
    "floor": (FloorDiv(A * B + 1, 3), lambda a, b: (a * b + 1) // 3),
    "negative floor": (FloorDiv(1 - A, B + 1), lambda a, b: (1 - a) // (b + 1)),
    "ceiling": (CeilDiv(A, B), lambda a, b: -(-a // b)),
    "remainder": (Mod(A * B, 5), lambda a, b: a * b % 5),
    "python's remainder": (PythonMod(A - 9, B), lambda a, b: (a - 9) % b),
    "distance": (sympy.Abs(A - 2 * B), lambda a, b: abs(a - 2 * b)),
    "of a quotient": (ModularIndexing(A, 2, 3), lambda a, b: a // 2 % 3),
    "bounds": (sympy.Max(2, sympy.Min(A, B)), lambda a, b: max(2, min(a, b))),
}


def value(expr: Any, sizes: dict[Any, int]) -> int:
    """What layers that follow ``operation`` give."""
    if expr in sizes:
        return sizes[expr]
    if expr.is_Integer:
        return int(expr)
    layer, operands = operation_of(expr)
    return functools.reduce(LAYERS[layer], [value(operand, sizes) for operand in operands])


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_layers_give_the_value(name: str) -> None:
    expr, meant = EXPRESSIONS[name]
    for a in range(1, 9):
        for b in range(1, 6):
            assert value(expr, {A: a, B: b}) == meant(a, b)


def test_what_layers_cannot_compute_is_named() -> None:
    with pytest.raises(NetworkError, match="log is not supported"):
        operation_of(sympy.log(A))
