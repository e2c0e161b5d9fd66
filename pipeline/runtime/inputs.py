"""What is asked of the inputs of a call before anything runs: structure, types, dtypes, sizes, ranges, relations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.utils._pytree import tree_flatten

from pipeline.errors import ShapeError
from pipeline.program import Port, Program


def flatten_inputs(program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """The call's inputs in the order of the program's; keyword arguments may come in any order."""
    given, spec = tree_flatten((args, _ordered(program.in_spec, kwargs)))
    if spec != program.in_spec:
        raise TypeError(f"the inputs are structured as {spec}, the program was compiled for {program.in_spec}")
    for port, value in zip(program.inputs, given, strict=True):
        _check(port, value)
    return given


def _ordered(spec: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments in the order in which the program was exported."""
    children = spec.children() if callable(getattr(spec, "children", None)) else spec.children_specs
    known = list(children[1].context or [])
    if set(known) != set(kwargs):
        missing, extra = sorted(set(known) - set(kwargs)), sorted(set(kwargs) - set(known))
        raise TypeError(f"the program was compiled with keywords {known}: missing {missing}, not known {extra}")
    return {name: kwargs[name] for name in known}


def _check(port: Port, value: Any) -> None:
    if port.kind == "constant":
        if type(value) is not type(port.value) or value != port.value:
            raise TypeError(
                f"input {port.name} is {value!r}; it is part of the program, which was compiled for {port.value!r}"
            )
    elif port.kind == "symint":
        if not isinstance(value, int):
            raise TypeError(f"input {port.name} is a {type(value).__name__}, an int is due")
    elif not isinstance(value, torch.Tensor):
        raise TypeError(f"input {port.name} is a {type(value).__name__}, a tensor is due")
    elif value.dtype != port.dtype:
        raise TypeError(f"input {port.name} is {value.dtype}, the program was compiled for {port.dtype}")


def bind_symbols(program: Program, given: Sequence[Any]) -> dict[str, int]:
    """Each symbol's value, read off the inputs' sizes; every size is checked against its range and its expression."""
    symbols: dict[str, int] = {}
    later: list[tuple[Port, int | None, Any, int]] = []
    for port, value in zip(program.inputs, given, strict=True):
        if port.kind == "symint":
            _bind(port, None, port.value, value, symbols, later)
        elif port.kind == "tensor":
            if value.dim() != len(port.shape):
                raise ShapeError(port.name, None, value.dim(), (len(port.shape), len(port.shape)))
            for i, (expr, size) in enumerate(zip(port.shape, value.shape, strict=True)):
                _bind(port, i, expr, size, symbols, later)
    for port, dim, expr, size in later:
        _solve(port, dim, expr, size, symbols)
        wanted = int(expr.xreplace({s: sympy.Integer(symbols[str(s)]) for s in expr.free_symbols}))
        if wanted != size:
            raise ShapeError(port.name, dim, size, (wanted, wanted))
    for relation, words in program.relations:
        known = {s: sympy.Integer(symbols[str(s)]) for s in relation.free_symbols if str(s) in symbols}
        if relation.xreplace(known) in (False, sympy.false):
            sizes = ", ".join(f"{s} = {value}" for s, value in known.items())
            raise ValueError(f"the program was captured under the condition {words}, which does not hold for {sizes}")
    return symbols


def _solve(port: Port, dim: int | None, expr: Any, size: int, symbols: dict[str, int]) -> None:
    """Give a symbol that is seen only inside an expression (``4*s``) its value."""
    unknown = [s for s in expr.free_symbols if str(s) not in symbols]
    if len(unknown) != 1:
        return
    known = {s: sympy.Integer(symbols[str(s)]) for s in expr.free_symbols if str(s) in symbols}
    rest = expr.xreplace(known)
    slope, start = rest.coeff(unknown[0], 1), rest.subs(unknown[0], 0)
    if not slope.is_Integer or (size - start) % slope != 0:
        where = f"in dimension {dim}" if dim is not None else "as its value"
        raise ValueError(f"input {port.name} has {size} {where}; the program was captured for sizes {expr}")
    symbols[str(unknown[0])] = int((size - start) / slope)


def _bind(port: Port, dim: int | None, expr: Any, size: int, symbols: dict[str, int], later: list[Any]) -> None:
    allowed = port.ranges[dim or 0]
    if not allowed.min <= size <= allowed.max:
        raise ShapeError(port.name, dim, size, (allowed.min, allowed.max))
    if isinstance(expr, int):
        return
    if not expr.is_Symbol:
        later.append((port, dim, expr, size))
    elif symbols.setdefault(str(expr), size) != size:
        raise ShapeError(port.name, dim, size, (symbols[str(expr)],) * 2)
