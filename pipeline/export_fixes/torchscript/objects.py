"""Evaluators of TorchScript's constants, attributes, tuples, lists, dicts, instances of classes, and type tests."""

from __future__ import annotations

import ast
import re
from collections import namedtuple
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import torch
from attrs import define, field

from pipeline.export_fixes.branches import UNSET
from pipeline.export_fixes.torchscript.graph import Value
from pipeline.export_fixes.torchscript.registry import Call, Evaluator
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
