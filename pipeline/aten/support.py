"""Define records of operator support: a converter with validator and capabilities, or the reason for a rejection."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import torch

from pipeline.aten.types import Argument, Operator
from pipeline.settings import CompilationSettings

Target: TypeAlias = Operator | Callable[..., Any]
Implementation: TypeAlias = Callable[..., Any]


class ConverterPriority(enum.Enum):
    """A converter's priority: HIGH converters are tried first, the newest first; then STANDARD, the oldest first."""

    HIGH = "high"
    STANDARD = "standard"


class CallingConvention(enum.Enum):
    """A converter's arguments are `(ctx, target, args, kwargs, name)`; `ctx` is a context (CTX) or network (LEGACY)."""

    CTX = "ctx"
    LEGACY = "legacy"


def must_be(kind: type) -> Callable[[Any, Any, Any], None]:
    """Return an attrs validator that raises a TypeError unless a field's value is an instance of ``kind``."""

    def check(_: object, field: Any, value: Argument) -> None:
        if not isinstance(value, kind):
            raise TypeError(f"{field.name} must be a {kind.__name__}, got {value!r}")

    return check


def _must_be_function(_: object, field: Any, value: Argument) -> None:
    """Raise a TypeError unless a field is callable (an attrs validator); None is allowed if it is the default."""
    if not callable(value) and not (value is None and field.default is None):
        raise TypeError(f"{field.name} must be a function, got {value!r}")


@attrs.frozen
class Rejection:
    """The reason why a converter rejects a node, with a hint if the user can change it; its truth value is False."""

    reason: str = attrs.field(validator=must_be(str))
    hint: str = attrs.field(default="", validator=must_be(str))

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"{self.reason} (hint: {self.hint})" if self.hint else self.reason


Validator: TypeAlias = Callable[[torch.fx.Node, CompilationSettings], bool | Rejection]


@attrs.frozen
class ConverterSupport:
    """A converter with its declared capabilities; lookup, docs and tests read them.

    capability_validator: `(node, settings) -> bool | Rejection`, pure; None accepts every node.
    supports_dynamic_shapes: the converter accepts nodes with symbolic dims. requires_output_allocator: the shape of the
        result is data-dependent.
    """

    converter_implementation: Implementation = attrs.field(validator=_must_be_function)
    capability_validator: Validator | None = attrs.field(default=None, validator=_must_be_function)
    supports_dynamic_shapes: bool = attrs.field(default=False, validator=must_be(bool))
    requires_output_allocator: bool = attrs.field(default=False, validator=must_be(bool))

    @property
    def name(self) -> str:
        """The name of the converter's function, for messages and tables."""
        return source_name(self.converter_implementation)


@attrs.frozen
class Declaration:
    """The declaration that a function converts one target, with its priority and calling convention."""

    key: Target
    support: ConverterSupport
    priority: ConverterPriority = attrs.field(default=ConverterPriority.STANDARD, validator=must_be(ConverterPriority))
    convention: CallingConvention = CallingConvention.CTX

    def with_function(self, function: Implementation) -> Declaration:
        """Return the same declaration with another function as the converter."""
        if function is self.support.converter_implementation:
            return self
        return attrs.evolve(self, support=attrs.evolve(self.support, converter_implementation=function))


Entry: TypeAlias = tuple[Implementation, CallingConvention, dict[str, bool]]


@attrs.frozen
class Choice:
    """The converter that was chosen for a node, with its calling convention and priority."""

    support: ConverterSupport
    convention: CallingConvention = CallingConvention.CTX
    priority: ConverterPriority = ConverterPriority.STANDARD

    def entry(self) -> Entry:
        """Return what `registry[node]` returns: the implementation, the calling convention and the capabilities."""
        flags = {name: getattr(self.support, name) for name in ("supports_dynamic_shapes", "requires_output_allocator")}
        return self.support.converter_implementation, self.convention, flags


def function_name(function: object) -> str:
    """Return a function's module and name, which are equal in every process, unlike its repr."""
    named = function if hasattr(function, "__name__") else getattr(function, "func", type(function))
    return f"{named.__module__}.{named.__name__}"


def source_name(function: object) -> str:
    """Return a function's name in the source, qualified by its module and by the class or factory around it."""
    name = function_name(function)
    qualified = getattr(function, "__qualname__", "").replace(".<locals>", "").removeprefix("<locals>.")
    return f"{name.rpartition('.')[0]}.{qualified}" if qualified else name
