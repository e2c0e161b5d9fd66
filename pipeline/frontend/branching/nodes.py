"""Make the nodes of a function that is written anew."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Final

MODULE: Final = "pipeline.frontend.branching"
IMPORTED: Final = {"both": "_pipeline_both", "turns": "_pipeline_turns"}
"""The modules that such a function calls, and their names in it."""


def imports() -> ast.stmt:
    """The import of what it calls."""
    return ast.ImportFrom(MODULE, [ast.alias(*each) for each in IMPORTED.items()], 0)


def at(node: ast.stmt, line: int) -> ast.stmt:
    """Give what was made here the line of what it was made from."""
    for each in ast.walk(node):
        if isinstance(each, ast.stmt | ast.expr) and not hasattr(each, "lineno"):
            each.lineno = each.end_lineno = line
            each.col_offset = each.end_col_offset = 0
    return node


def assigned(name: str, value: ast.expr) -> ast.stmt:
    """``name = value``"""
    return ast.Assign([ast.Name(name, ast.Store())], value)


def unpacked(names: Sequence[str], value: ast.expr) -> ast.stmt:
    """``(a, b) = value``"""
    return ast.Assign([ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())], value)


def call(name: str, *args: ast.expr, module: str = "both") -> ast.expr:
    """A call of a function of ours."""
    return method(IMPORTED[module], name, *args)


def method(owner: str, name: str, *args: ast.expr) -> ast.expr:
    """``owner.name(a, b)``"""
    return ast.Call(attribute(owner, name), [*args], [])


def attribute(owner: str, name: str) -> ast.expr:
    """``owner.name``"""
    return ast.Attribute(ast.Name(owner, ast.Load()), name, ast.Load())


def constant(value: object) -> ast.expr:
    """A literal."""
    return ast.Constant(value)  # type: ignore[arg-type]


def variables() -> ast.expr:
    """``locals()``"""
    return ast.Call(ast.Name("locals", ast.Load()), [], [])


def deferred(value: ast.expr) -> ast.expr:
    """``lambda: value``"""
    none = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(none, value)
