"""Declare converters: a decorator attaches immutable declarations to a function, and does not register it."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final, TypeVar

import torch
from torch._ops import OpOverload, OpOverloadPacket

from pipeline.aten.support import ConverterPriority, ConverterSupport, Declaration, Rejection, Target, Validator
from pipeline.records.executed_ops import name_of_traced_function
from pipeline.records.wording import kind_of

__all__ = ["Rejection", "attach", "collect", "declarations_of", "dynamo_tensorrt_converter", "records_of", "target_of"]

F = TypeVar("F", bound=Callable[..., Any])

TAKES: Final = ("ctx", "target", "args", "kwargs", "name")
"""The names of the arguments with which a converter is called."""

ATTRIBUTE: Final = "__converter_declarations__"
"""The name of the function attribute that stores a tuple of declarations, in the order in which the decorators ran."""


def dynamo_tensorrt_converter(
    key: Target | OpOverloadPacket[..., Any],
    *,
    enabled: bool = True,
    capability_validator: Validator | None = None,
    priority: ConverterPriority = ConverterPriority.STANDARD,
    supports_dynamic_shapes: bool = False,
    requires_output_allocator: bool = False,
) -> Callable[[F], F]:
    """Declare a function as a converter of `key` and return the function itself, without registering it.

    Use one decorator per target. `key` is an `OpOverload`, an `OpOverloadPacket` with one functional overload, or a
    Python function such as `operator.getitem`; anything else is a `TypeError`. `enabled=False` declares nothing.
    """
    if isinstance(key, FunctionType) and [*inspect.signature(key).parameters][1:] == [*TAKES[1:]]:
        raise TypeError(f"the target is missing: decorate {key.__name__} with @dynamo_tensorrt_converter(target)")
    if reason := reason_never_called(key):
        raise TypeError(reason)
    target = target_of(key)

    def declare(function: F) -> F:
        _check_converter(function)
        support = ConverterSupport(function, capability_validator, supports_dynamic_shapes, requires_output_allocator)
        return attach(function, ATTRIBUTE, (Declaration(target, support, priority),) if enabled else ())

    return declare


def _check_converter(function: object) -> None:
    """Raise a `TypeError` unless a function can be called with the five arguments of a converter."""
    if not callable(function):
        raise TypeError(f"the converter is {kind_of(function)}: expected a function of ({', '.join(TAKES)})")
    if not isinstance(function, FunctionType | MethodType):
        return
    signature = inspect.signature(function, follow_wrapped=False)
    try:
        signature.bind(*TAKES)
    except TypeError as error:
        raise TypeError(
            f"a converter is called with ({', '.join(TAKES)}), but {function.__name__} takes {signature}: {error}"
        ) from None


def declarations_of(function: object) -> tuple[Declaration, ...]:
    """Return the declarations of a function as a converter, also those that `functools.wraps` copied to it."""
    if not callable(function) or (carried := records_of(function, ATTRIBUTE)) is None:
        raise TypeError(f"{function!r} is not a converter: decorate it with @dynamo_tensorrt_converter(target)")
    return tuple(declaration.with_function(function) for declaration in carried)


def target_of(key: object) -> Target:
    """Convert a key to a node target: an operator, its name (`"aten.relu.default"`, `"aten::relu"`), or a Python
    function. A packet must have one overload, or two of which one is `out`."""
    if isinstance(key, str):
        key = operator_by_name(key)
    if isinstance(key, OpOverload):
        return key
    if isinstance(key, OpOverloadPacket):
        overloads = key.overloads()
        chosen = [name for name in overloads if name != "out"] if len(overloads) == 2 else overloads
        if len(chosen) != 1:
            choices = ", ".join(f"torch.ops.{key}.{name}" for name in overloads)
            raise TypeError(f"torch.ops.{key} has {len(overloads)} overloads: pass one of them, {choices}")
        only: OpOverload[..., Any] = getattr(key, chosen[0])
        return only
    if not callable(key):
        raise TypeError(f"the target is {key!r}: expected an operator such as torch.ops.aten.add.Tensor, or a function")
    if isinstance(key, type) and issubclass(key, torch.nn.Module):
        raise TypeError(f"a graph has no module {key.__name__}, only its operators: {_operator_advice(key.__name__)}")
    if name := name_of_traced_function(key):
        raise TypeError(f"a graph has no {name}, only its operators: {_operator_advice(name.rpartition('.')[2])}")
    return key


def reason_never_called(key: object) -> str:
    """Return why a graph never calls an operator, or a packet: it is in-place or has an argument ``out``, and capture
    replaces such calls by functional operators. Empty for other operators."""
    overloads = targets_of_key(key) if isinstance(key, OpOverloadPacket) else (key,)
    schemas = [op._schema for op in overloads if isinstance(op, OpOverload) and op._schema.is_mutable]
    writing = [s for s in schemas if s.name.endswith("_") or any(each.is_out for each in s.arguments)]
    if writing and len(writing) == len(overloads):
        space, name = writing[0].name.split("::")
        name = re.sub(r"^__i(\w+)__$", r"bitwise_\1", name).removesuffix("_")
        advice = _operator_advice(name) if space == "aten" else "use one that returns its result"
        return f"a graph has no {key}, which writes to its arguments, only functional operators: {advice}"
    return ""


def operator_by_name(name: str) -> OpOverload[..., Any] | OpOverloadPacket[..., Any]:
    """Return the operator that torch prints as this name; raise a `ValueError` if torch has no such operator."""
    match = re.fullmatch(r"(?:torch\.ops\.)?(\w+)(?:\.|::)(\w+)(?:\.(\w+))?", name)
    namespace, operator, overload = match.groups() if match else ("", "", None)
    packet = getattr(getattr(torch.ops, namespace, None), operator, None) if match else None
    if not isinstance(packet, OpOverloadPacket) or overload not in (None, *packet.overloads()):
        close = [f"aten.{each}" for each in difflib.get_close_matches(operator, dir(torch.ops.aten), 3)]
        near = f"; similar names: {', '.join(close)}" if close else ""
        raise ValueError(f"there is no operator {name!r}: expected a name as 'aten.relu.default' or 'aten::relu'{near}")
    found: OpOverload[..., Any] | OpOverloadPacket[..., Any] = getattr(packet, overload) if overload else packet
    return found


def _operator_advice(name: str) -> str:
    """Return advice that names the operators to which a torch function or module of this name is traced."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    spelled = (name, name.lower(), snake, re.sub(r"_?[123]d$", "", snake))
    packet = next((p for n in spelled if (p := getattr(torch.ops.aten, n, None)) is not None), None)
    if packet is None:
        return "use those (torch.ops.aten.relu.default); print(pipeline.capture(model, args)) shows them"
    overloads = [f"torch.ops.{packet}.{o}" for o in packet.overloads() if not getattr(packet, o)._schema.is_mutable]
    return f"use those ({', '.join(overloads[:4])})"


def targets_of_key(key: object) -> tuple[Target, ...]:
    """Return all targets that a key can refer to in a lookup: for an operator packet, all its overloads."""
    key = operator_by_name(key) if isinstance(key, str) else key
    if isinstance(key, OpOverloadPacket):
        return tuple(getattr(key, name) for name in key.overloads())
    return (target_of(key),)


def attach(function: F, attribute: str, records: tuple[Any, ...]) -> F:
    """Append ``records`` (declarations) to the tuple in an attribute of a function, and return the function."""
    try:
        setattr(function, attribute, (records_of(function, attribute) or ()) + records)
    except (AttributeError, TypeError) as error:
        raise TypeError(f"{function!r} cannot be declared: attributes cannot be set on it; use a function") from error
    return function


def records_of(function: object, attribute: str) -> tuple[Any, ...] | None:
    """Return the records that `attach` added to this object itself, not to its class; None if there are none."""
    found = getattr(function, "__dict__", {}).get(attribute)
    return found if isinstance(found, tuple) else None


def collect(modules: Iterable[ModuleType], attribute: str) -> Iterator[Callable[..., Any]]:
    """Yield the functions with attached records that these modules define, also inside lists, tuples and dicts, but not
    functions imported from another module. The order is by module name, then by definition."""
    modules = [*modules]
    if wrong := [module for module in modules if not isinstance(module, ModuleType)]:
        raise TypeError(f"of() takes modules, not {wrong[0]!r}: call register() to add functions")
    for module in sorted({*modules}, key=lambda module: module.__name__):
        for held in [value for name, value in vars(module).items() if not name.startswith("__")]:
            values = held.values() if isinstance(held, dict) else held if isinstance(held, list | tuple) else [held]
            for value in values:
                by_factory = "<locals>" in getattr(value, "__qualname__", "<locals>")
                if records_of(value, attribute) is not None and (by_factory or value.__module__ == module.__name__):
                    yield value
