"""Evaluators of arithmetic on numbers and sizes, computed by Python; varying sizes stay expressions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Final

import torch

from pipeline.export_fixes.torchscript.registry import Call, Evaluator, overloads
from pipeline.export_fixes.torchscript.types import Value

_OPERATORS: Final[Mapping[str, Callable[..., Value]]] = {
    "aten::add": operator.add,
    "aten::sub": operator.sub,
    "aten::mul": operator.mul,
    "aten::div": operator.truediv,
    "aten::floordiv": operator.floordiv,
    "aten::remainder": operator.mod,
    "aten::pow": operator.pow,
    "aten::neg": operator.neg,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::lt": operator.lt,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::ge": operator.ge,
    "aten::__and__": operator.and_,
    "aten::__or__": operator.or_,
    "aten::__xor__": operator.xor,
    "aten::__lshift__": operator.lshift,
    "aten::__rshift__": operator.rshift,
    "aten::__not__": lambda a: torch.logical_not(a) if isinstance(a, torch.Tensor) else torch.sym_not(a),
    "aten::add_": operator.iadd,
    "aten::mul_": operator.imul,
    "aten::sum": sum,
    "aten::any": any,
    "aten::all": all,
    "aten::round": round,
    "aten::sqrt": torch.sym_sqrt,
    "aten::divmod": divmod,
    "aten::mathremainder": math.remainder,
    "aten::__round_to_zero_floordiv": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "aten::__range_length": lambda low, high, step: _length(low, high, step),
    "aten::__derive_index": lambda index, start, step: start + index * step,
    "aten::bin": bin,
    "aten::hex": hex,
    "aten::oct": oct,
    "aten::hash": hash,
    "prim::abs": abs,
}
"""Kinds as functions of numbers, strings and lists, for all overloads without a tensor."""

_MATH: Final = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh", "degrees", "erf"),
    *("erfc", "exp", "expm1", "fabs", "factorial", "floor", "fmod", "frexp", "gamma", "gcd", "isfinite", "isinf"),
    *("isnan", "ldexp", "lgamma", "log", "log10", "log1p", "modf", "radians", "sin", "sinh", "tan", "tanh"),
)
"""Kinds that are the function of the same name in ``math``."""


def _length(low: Value, high: Value, step: Value) -> Value:
    """Return how many numbers a range has."""
    if step == 1 and isinstance(high - low, torch.SymInt):
        return torch.sym_max(high - low, 0)
    return len(range(low, high, step))


def _extreme(pick: Callable[[Value, Value], Value], of_lists: Callable[..., Value]) -> Evaluator:
    """prim::max, prim::min of two numbers, of two lists or of one."""

    def evaluate(call: Call, first: Value, second: Value = None) -> Value:
        if second is None:
            return reduce(pick, first)
        return of_lists(first, second) if isinstance(first, list) else pick(first, second)

    return evaluate


def _number(function: Callable[..., Value]) -> Evaluator:
    """Return an evaluator whose result has TorchScript's type: ``2 ** 3`` is a float, ``floor`` an int."""

    def evaluate(call: Call, *values: Value) -> Value:
        result = function(*values)
        if call.types == ("float",) and type(result) in (int, torch.SymInt):
            return torch.sym_float(result)
        return int(result) if call.types == ("int",) and type(result) is float else result

    return evaluate


def plain(functions: Mapping[str, Callable[..., Value]]) -> dict[str, Evaluator]:
    """Evaluators for the overloads of these kinds that take no tensor."""
    return {f"{kind}.{o}": _number(f) for kind, f in functions.items() for o in overloads(kind, plain=True)}


NUMBERS: Final[Mapping[str, Evaluator]] = {
    **plain(_OPERATORS),
    **plain({f"aten::{name}": getattr(math, name) for name in _MATH}),
    "prim::max": _extreme(torch.sym_max, max),
    "prim::min": _extreme(torch.sym_min, min),
    "prim::rangelist": lambda call, end: list(range(end)),
}
"""Evaluators of arithmetic without tensors."""
