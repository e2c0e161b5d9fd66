"""Evaluators of TorchScript nodes on numbers, lists, dicts and strings.
They compute on Python objects: aliases of a list stay one object, and dynamic sizes stay symbolic expressions."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Final

import torch

from pipeline.export_fixes.torchscript.graph import Value
from pipeline.export_fixes.torchscript.registry import Call, Evaluator, evaluator_of_inputs_only, overloads


def _range_length(low: Value, high: Value, step: Value) -> Value:
    if step == 1 and isinstance(high - low, torch.SymInt):
        return torch.sym_max(high - low, 0)
    return len(range(low, high, step))


_SAME_IN_OPERATOR: Final = (
    *("add", "sub", "mul", "floordiv", "pow", "neg", "eq", "ne", "lt", "le", "gt", "ge"),
    *("__and__", "__or__", "__xor__", "__lshift__", "__rshift__"),
)
_SAME_IN_BUILTINS: Final = ("sum", "any", "all", "round", "divmod", "bin", "hex", "oct", "hash")
"""The names of node kinds that Python's built-in function of the same name evaluates."""

_OPERATORS: Final[Mapping[str, Callable[..., Value]]] = {
    **{f"aten::{name}": getattr(operator, name) for name in _SAME_IN_OPERATOR},
    **{f"aten::{name}": getattr(builtins, name) for name in _SAME_IN_BUILTINS},
    "aten::div": operator.truediv,
    "aten::remainder": operator.mod,
    "aten::__not__": lambda a: torch.logical_not(a) if isinstance(a, torch.Tensor) else torch.sym_not(a),
    "aten::add_": operator.iadd,
    "aten::mul_": operator.imul,
    "aten::sqrt": torch.sym_sqrt,
    "aten::mathremainder": math.remainder,
    "aten::__round_to_zero_floordiv": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "aten::__range_length": _range_length,
    "aten::__derive_index": lambda index, start, step: start + index * step,
    "prim::abs": abs,
}
"""For each kind of node, the function that evaluates its overloads without tensor arguments."""

_MATH: Final = {f"aten::{name}": function for name, function in vars(math).items() if callable(function)}
"""For each kind of node that may exist, the function of the same name in ``math``, which evaluates it."""


def _min_or_max_evaluator(pick: Callable[[Value, Value], Value], of_lists: Callable[..., Value]) -> Evaluator:
    """Return an evaluator of prim::max or prim::min that calls ``pick`` with numbers, ``of_lists`` with two lists."""

    def evaluate(call: Call, first: Value, second: Value = None) -> Value:
        if second is None:
            return reduce(pick, first)
        return of_lists(first, second) if isinstance(first, list) else pick(first, second)

    return evaluate


def _cast_result(function: Callable[..., Value]) -> Evaluator:
    """Return an evaluator whose result has the type that TorchScript declares: ``2 ** 3`` is a float."""

    def evaluate(call: Call, *values: Value) -> Value:
        result = function(*values)
        if call.types == ("float",) and type(result) in (int, torch.SymInt):
            return torch.sym_float(result)
        return int(result) if call.types == ("int",) and type(result) is float else result

    return evaluate


def tensorless_evaluators(functions: Mapping[str, Callable[..., Value]]) -> dict[str, Evaluator]:
    """Return an evaluator for each overload without tensor arguments (``aten::add.int``) of a kind in ``functions``,
    which has a function for each kind (``aten::add``)."""
    return {f"{kind}.{o}": _cast_result(f) for kind, f in functions.items() for o in overloads(kind, tensorless=True)}


NUMBERS: Final[Mapping[str, Evaluator]] = {
    **tensorless_evaluators(_MATH | _OPERATORS),
    "prim::max": _min_or_max_evaluator(torch.sym_max, max),
    "prim::min": _min_or_max_evaluator(torch.sym_min, min),
    "prim::rangelist": lambda call, end: list(range(end)),
}
"""The evaluators of arithmetic on numbers."""


def _get_item(call: Call, values: Value, index: Value) -> Value:
    if isinstance(values, dict) and index not in values:
        raise call.error(f"the dict has no key {index!r}")
    if not isinstance(values, dict) and not -len(values) <= index < len(values):
        raise call.error(f"index {index} is out of range for a list of length {len(values)}")
    return values[index]


def _append_and_return(values: list[Value], value: Value) -> list[Value]:
    values.append(value)
    return values


def _method_caller(name: str) -> Callable[..., Value]:
    """Return a function that calls the method ``name`` of its first argument with its other arguments."""
    return lambda owner, *values: getattr(owner, name)(*values)


_LISTS: Final[Mapping[str, Callable[..., Value]]] = {
    "aten::slice": lambda values, start, end, step=1: values[start:end:step],
    "aten::select": lambda values, index: values[index],
    "aten::list": list,
    "aten::sort": lambda values, *options: values.sort(reverse=bool(options and options[-1])),
    "aten::sorted": lambda values, *options: sorted(values, reverse=bool(options and options[-1])),
    **{f"aten::{name}": _method_caller(name) for name in ("copy", "clear", "remove")},
    "aten::dict": dict,
    "aten::len": len,
}
"""For each kind of node that also exists for tensors, the function for its overloads on lists, dicts and strings."""

_STRINGS: Final = tuple(name for name in dir(str) if not name.startswith("_") and name != "format")
"""The names of node kinds, where these exist, that a method of the same name, of a string or list, evaluates."""

_METHODS: Final = ("extend", "insert", "pop", "reverse", "get", "setdefault", "update", "popitem")
"""The names of node kinds that the list or dict method of the same name evaluates."""


CONTAINERS: Final[Mapping[str, Evaluator]] = {
    **tensorless_evaluators(_LISTS),
    **tensorless_evaluators({f"aten::{name}": _method_caller(name) for name in _STRINGS}),
    **{f"aten::{name}": evaluator_of_inputs_only(_method_caller(name)) for name in _METHODS},
    "aten::keys": lambda call, values: list(values.keys()),
    "aten::values": lambda call, values: list(values.values()),
    "aten::items": lambda call, values: list(values.items()),
    "aten::append": evaluator_of_inputs_only(_append_and_return),
    "aten::__getitem__": _get_item,
    "prim::StringIndex": _get_item,
    "aten::_set_item": evaluator_of_inputs_only(operator.setitem),
    "aten::Delete": evaluator_of_inputs_only(operator.delitem),
    "aten::__contains__": lambda call, values, value: value in values,
    "aten::Size": evaluator_of_inputs_only(list),
    "aten::format": lambda call, text, *values: text.format(*values),
    "aten::percentFormat": lambda call, text, *values: text % values,
    "aten::str": evaluator_of_inputs_only(str),
    "aten::ord": evaluator_of_inputs_only(ord),
    "aten::chr": evaluator_of_inputs_only(chr),
}
"""The evaluators of operations on lists, dicts and strings."""
