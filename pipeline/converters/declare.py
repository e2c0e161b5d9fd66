"""Declaring: a decorator attaches frozen records to a function, and nothing else in the world changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, Final, TypeVar

from torch._ops import OpOverload, OpOverloadPacket

from pipeline.aten.support import ConverterPriority, ConverterSupport, Declaration, Rejection, Target, Validator
from pipeline.settings import traced_name

__all__ = ["Rejection", "attach", "attached", "declarations_of", "dynamo_tensorrt_converter", "gather", "target_of"]

F = TypeVar("F", bound=Callable[..., Any])

ATTRIBUTE: Final = "__converter_declarations__"
"""Where a function carries its declarations: a tuple, in the order in which the decorators were applied."""


def dynamo_tensorrt_converter(
    key: Target | OpOverloadPacket[..., Any],
    *,
    enabled: bool = True,
    capability_validator: Validator | None = None,
    priority: ConverterPriority = ConverterPriority.STANDARD,
    supports_dynamic_shapes: bool = False,
    requires_output_allocator: bool = False,
) -> Callable[[F], F]:
    """Declare a function as a converter of `key`; the function itself is returned, and no registry knows of it yet.

    Stackable, one decorator a target. `key` is an `OpOverload`, an `OpOverloadPacket` that leaves no choice, or a
    Python function such as `operator.getitem`; anything else is a `TypeError`. `enabled=False` declares nothing.
    """
    target = target_of(key)

    def declare(function: F) -> F:
        support = ConverterSupport(function, capability_validator, supports_dynamic_shapes, requires_output_allocator)
        return attach(function, ATTRIBUTE, (Declaration(target, support, priority),) if enabled else ())

    return declare


def declarations_of(function: object) -> tuple[Declaration, ...]:
    """The declarations that a function carries, naming that function even if `functools.wraps` copied them to it."""
    if not callable(function) or (carried := attached(function, ATTRIBUTE)) is None:
        raise TypeError(f"{function!r} declares no converter; decorate it with @dynamo_tensorrt_converter(target)")
    return tuple(declaration.on(function) for declaration in carried)


def target_of(key: object) -> Target:
    """The target that a key stands for; a packet must have one overload, or two of which one is `out`."""
    if isinstance(key, OpOverload):
        return key
    if isinstance(key, OpOverloadPacket):
        return _only_overload(key)
    if isinstance(key, str):
        raise TypeError(f"a target is an operator, not its name: torch.ops.{key.replace('::', '.')}, not {key!r}")
    if not callable(key):
        raise TypeError(f"a target is an OpOverload such as torch.ops.aten.add.Tensor, or a function, not {key!r}")
    if name := traced_name(key):
        raise TypeError(f"{name} is traced to operators: declare converters of those (torch.ops.aten.relu.default)")
    return key


def _only_overload(packet: OpOverloadPacket[..., Any]) -> OpOverload[..., Any]:
    overloads = packet.overloads()
    chosen = [name for name in overloads if name != "out"] if len(overloads) == 2 else overloads
    if len(chosen) != 1:
        choices = ", ".join(f"torch.ops.{packet}.{name}" for name in overloads)
        raise TypeError(f"torch.ops.{packet} has {len(overloads)} overloads; say which: {choices}")
    only: OpOverload[..., Any] = getattr(packet, chosen[0])
    return only


def attach(function: F, attribute: str, records: tuple[Any, ...]) -> F:
    """Append records to the tuple that a function carries in an attribute."""
    try:
        setattr(function, attribute, (attached(function, attribute) or ()) + records)
    except (AttributeError, TypeError) as error:
        raise TypeError(f"{function!r} takes no attributes, so it cannot be declared; use a function") from error
    return function


def attached(function: object, attribute: str) -> tuple[Any, ...] | None:
    """What `attach` left on this very object (not on its class); None if nothing did."""
    found = getattr(function, "__dict__", {}).get(attribute)
    return found if isinstance(found, tuple) else None


def gather(modules: Iterable[ModuleType], attribute: str) -> Iterator[Callable[..., Any]]:
    """The functions that modules define and that carry records: by module name, in each in the order of definition.

    Functions kept in a module's lists, tuples and dicts count, those imported from another module do not.
    """
    for module in sorted({*map(_checked, modules)}, key=lambda module: module.__name__):
        for value in _values(module):
            if attached(value, attribute) is not None and _defined_in(module, value):
                yield value


def _checked(module: object) -> ModuleType:
    if not isinstance(module, ModuleType):
        raise TypeError(f"of() takes modules, not {module!r}; functions are given to register()")
    return module


def _values(module: ModuleType) -> Iterator[Any]:
    for name, value in list(vars(module).items()):
        if name.startswith("__"):
            continue
        if isinstance(value, list | tuple):
            yield from value
        elif isinstance(value, dict):
            yield from list(value.values())
        else:
            yield value


def _defined_in(module: ModuleType, function: Any) -> bool:
    """What a factory of another module made for this one is this one's too."""
    made = "<locals>" in getattr(function, "__qualname__", "<locals>")
    return made or getattr(function, "__module__", None) == module.__name__
