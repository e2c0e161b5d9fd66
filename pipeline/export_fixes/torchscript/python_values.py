"""Evaluators of TorchScript nodes on Python values: constants, attributes, numbers, containers, strings, type tests.
Aliases of a list stay one object, and dynamic sizes stay symbolic expressions."""

from __future__ import annotations

import ast
import builtins
import math
import operator
import re
from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import lru_cache, reduce
from typing import Final

import torch
from attrs import define, field

from pipeline.export_fixes.branches import UNSET
from pipeline.export_fixes.torchscript.graph import Value
from pipeline.export_fixes.torchscript.registry import Call, Evaluator, evaluator_of_inputs_only, overloads
from pipeline.records.wording import kind_of


@define(eq=False)
class Object:
    """An instance of a class that a script defines: the name of the class, and its attributes."""

    kind: str
    attributes: dict[str, Value] = field(factory=dict)


def evaluate_constant(call: Call) -> Value:
    """Evaluate prim::Constant; make a tensor (of one integer) from its number, which `known_values` then tracks."""
    value = call.attributes["value"]
    if not isinstance(value, torch.Tensor):
        return value
    return torch.scalar_tensor(value.item(), dtype=value.dtype, device=value.device)


def get_attribute(call: Call, owner: Value) -> Value:
    """Evaluate prim::GetAttr: return an attribute of a module or of a script object."""
    name = call.attributes["name"]
    found = owner.attributes if isinstance(owner, Object) else None
    if name not in found if found is not None else not hasattr(owner, name):
        raise call.error(f"{kind_of(owner)} has no attribute {name!r}")
    return found[name] if found is not None else getattr(owner, name)


def set_attribute(call: Call, owner: Value, value: Value) -> None:
    """Evaluate prim::SetAttr: set an attribute of a script object or module; a module's tensor must be a buffer."""
    name = call.attributes["name"]
    if isinstance(owner, Object):
        owner.attributes[name] = value
    elif isinstance(value, torch.Tensor) and name not in dict(owner.named_buffers(recurse=False)):
        hint = f"make {name} a buffer by register_buffer, so that the compiled program can update it"
        raise call.error(f"the model assigns a tensor to {name}, which is not a buffer", hint)
    else:
        setattr(owner, name, value)


def construct_tuple(call: Call, *values: Value) -> Value:
    """Evaluate prim::TupleConstruct: return a tuple or a named tuple."""
    fields = named_tuple_fields(call.types[0])
    return tuple(values) if fields is None else _named_tuple_class(fields)(*values)


def named_tuple_fields(kind: str) -> tuple[str, ...] | None:
    """Return the field names in the printed type of a named tuple; None for the type of a plain tuple."""
    if not kind.startswith("NamedTuple("):
        return None
    inner, depth, names = kind.removeprefix("NamedTuple(").removesuffix(")"), 0, []
    for part in re.split(r"([(\[\])]|, )", inner):
        depth += (part in "([") - (part in ")]") if part else 0
        if depth == 0 and (match := re.match(r"(\w+) : ", part)):
            names.append(match[1])
    return tuple(names)


@lru_cache
def _named_tuple_class(fields: tuple[str, ...]) -> Value:
    return namedtuple("Results", fields)


def is_instance(call: Call, value: Value) -> bool:
    """Evaluate a prim::isinstance that TorchScript has not already evaluated."""
    return any(_has_type(value, ast.parse(kind, mode="eval").body) for kind in call.attributes["types"])


_SIMPLE: Final[Mapping[str, tuple[type, ...]]] = {
    "int": (int, torch.SymInt),
    "float": (float, torch.SymFloat),
    "bool": (bool, torch.SymBool),
    "complex": (complex,),
    "number": (int, float, complex, torch.SymInt, torch.SymFloat),
    "str": (str,),
    "Tensor": (torch.Tensor,),
    "NoneType": (type(None),),
    "Device": (torch.device,),
    "list": (list,),
    "tuple": (tuple,),
    "dict": (dict,),
    "Any": (object,),
}


def _has_type(value: Value, script_type: ast.expr) -> bool:
    """Return whether a value has a type in TorchScript syntax: ``int``, ``List[Tensor]``, ``Optional[int]``."""
    if isinstance(script_type, ast.Constant):
        return value is None
    if isinstance(script_type, ast.Subscript):
        name = ast.unparse(script_type.value).rpartition(".")[2]
        inner = script_type.slice
        return _has_generic_type(name, value, inner.elts if isinstance(inner, ast.Tuple) else [inner])
    name = ast.unparse(script_type)
    if isinstance(value, Object):
        return name in (value.kind, "Any")
    known = _SIMPLE.get(name.rpartition(".")[2], ())
    return isinstance(value, known) and not (isinstance(value, bool) and name == "int")


def _has_generic_type(name: str, value: Value, kinds: list[ast.expr]) -> bool:
    """Return whether a value has a generic TorchScript type, such as ``List[int]``, by its name and arguments."""
    if name == "Optional":
        return value is None or _has_type(value, kinds[0])
    if name == "Union":
        return any(_has_type(value, kind) for kind in kinds)
    if name == "List":
        return isinstance(value, list) and all(_has_type(v, kinds[0]) for v in value)
    if name == "Dict":
        pairs = value.items() if isinstance(value, dict) else ()
        return isinstance(value, dict) and all(_has_type(k, kinds[0]) and _has_type(v, kinds[1]) for k, v in pairs)
    return (
        name == "Tuple" and isinstance(value, tuple) and len(value) == len(kinds) and all(map(_has_type, value, kinds))
    )


_UNCHANGED: Final = ("prim::unchecked_cast", "prim::unchecked_unwrap_optional", "aten::_unwrap_optional")

OBJECTS: Final[Mapping[str, Evaluator]] = {
    "prim::Constant": evaluate_constant,
    "prim::GetAttr": get_attribute,
    "prim::SetAttr": set_attribute,
    "prim::CreateObject": lambda call: Object(call.types[0]),
    "prim::TupleConstruct": construct_tuple,
    "prim::TupleUnpack": lambda call, values: tuple(values),
    "prim::TupleIndex": lambda call, values, index: values[index],
    "prim::TupleSlice": lambda call, values: values[call.attributes["beg"] : call.attributes["end"]],
    "prim::ListConstruct": lambda call, *values: list(values),
    "prim::ListUnpack": lambda call, values: tuple(values),
    "prim::DictConstruct": lambda call, *values: dict(zip(values[::2], values[1::2], strict=True)),
    "prim::Uninitialized": lambda call: UNSET,
    "prim::isinstance": is_instance,
    **dict.fromkeys(_UNCHANGED, lambda call, value, *_: value),
    "prim::EnumName": lambda call, value: value.name,
    "prim::EnumValue": lambda call, value: value.value,
    "aten::__is__": lambda call, a, b: a is b,
    "aten::__isnot__": lambda call, a, b: a is not b,
}
"""The evaluators of nodes that create constants, tuples and objects, or read their elements and attributes."""


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
    **tensorless_evaluators({**_MATH, **_OPERATORS}),
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
