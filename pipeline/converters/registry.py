"""Define the converter registry: an immutable mapping from targets to converters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, Final

import attrs
from toolz import concat, unique
from torch._ops import OpOverloadPacket

from pipeline.aten.support import (
    CallingConvention,
    ConverterPriority,
    ConverterSupport,
    Declaration,
    Implementation,
    Rejection,
    Target,
    Validator,
)
from pipeline.converters.declare import (
    ATTRIBUTE,
    collect,
    declarations_of,
    dynamo_tensorrt_converter,
    records_of,
    target_of,
    targets_of_key,
)
from pipeline.converters.lookup import BoundRegistry, Candidates, Lookup, Refusal
from pipeline.frozen import FrozenDict
from pipeline.records.wording import kind_of
from pipeline.settings import CompilationSettings

__all__ = [
    "BoundRegistry",
    "CallingConvention",
    "ConverterPriority",
    "ConverterRegistry",
    "ConverterSupport",
    "Refusal",
    "Rejection",
    "Validator",
    "dynamo_tensorrt_converter",
]

_HOW: Final = (
    "call register(f) for functions with @dynamo_tensorrt_converter, ConverterRegistry.of(module) for converters in a "
    "module, or ConverterRegistry.from_legacy({target: f}) for plain functions"
)


def _sort_by_priority(declarations: Iterable[Declaration]) -> Candidates:
    """Group distinct declarations by target: first HIGH priority, the newest first, then STANDARD, the oldest first."""
    by_target: dict[Target, list[Declaration]] = {}
    for declaration in declarations:
        if not isinstance(declaration, Declaration):
            raise TypeError(f"ConverterRegistry takes declarations of converters, not {declaration!r}; {_HOW}")
        by_target.setdefault(declaration.key, []).append(declaration)
    candidates: dict[Target, tuple[Declaration, ...]] = {}
    for target, found in by_target.items():
        high = [declaration for declaration in reversed(found) if declaration.priority is ConverterPriority.HIGH]
        standard = [declaration for declaration in found if declaration.priority is ConverterPriority.STANDARD]
        candidates[target] = tuple(unique(high + standard))
    return FrozenDict(candidates)


@attrs.frozen(eq=False, repr=False)
class ConverterRegistry(Lookup):
    """An immutable mapping from target to converters: methods that change it return a new registry.

    Candidates of a target are tried in order: HIGH before STANDARD, the newest HIGH first, the oldest STANDARD first.
    Converters registered later are newer. In `a | b`, which is associative, the converters of `b` are newer.

    A lookup by node, `registry[node]`, uses the default compilation settings; `registry.bind(settings)[node]` others.
    """

    candidates: Candidates = attrs.field(alias="declarations", converter=_sort_by_priority, factory=tuple)
    settings: CompilationSettings = attrs.field(init=False, default=CompilationSettings())

    @classmethod
    def of(cls, *modules: ModuleType) -> ConverterRegistry:
        """Return a registry of the converters that modules declare, sorted by module name, then in order of definition.

        Neither the order of the arguments nor that of the imports matters, and a function that a module merely imported
        belongs to the module that defines it. Functions in a module's lists, tuples and dicts are included.
        """
        return cls().register(collect(modules, ATTRIBUTE))

    @classmethod
    def from_legacy(cls, converters: Mapping[Any, Implementation]) -> ConverterRegistry:
        """Create a registry from a plain `{target: function}` dictionary of functions with the LEGACY convention."""
        keys: dict[Target, Any] = {}
        for key in converters:
            if keys.setdefault(target_of(key), key) is not key:
                raise ValueError(f"the keys {keys[target_of(key)]!r} and {key!r} are the same operator: remove one")
        return cls(
            Declaration(target, ConverterSupport(converters[key]), convention=CallingConvention.LEGACY)
            for target, key in keys.items()
        )

    def bind(self, settings: CompilationSettings) -> BoundRegistry:
        """Return a view of the registry whose lookups by node use the given compilation settings."""
        return BoundRegistry(self, settings)

    def declarations(self) -> tuple[Declaration, ...]:
        """Return all declarations, the oldest first, so that `ConverterRegistry(r.declarations()) == r`."""
        oldest_first: list[Declaration] = []
        for candidates in self.candidates.values():
            high = [declaration for declaration in candidates if declaration.priority is ConverterPriority.HIGH]
            oldest_first += [*reversed(high), *candidates[len(high) :]]
        return tuple(oldest_first)

    def register(self, *converters: Callable[..., Any] | Iterable[Callable[..., Any]]) -> ConverterRegistry:
        """Return a new registry with these declared functions, or iterables of them, as the newest converters."""
        return self | ConverterRegistry(concat(map(declarations_of, _flatten_functions(converters))))

    def override(self, *converters: Callable[..., Any] | Iterable[Callable[..., Any]]) -> ConverterRegistry:
        """Return a new registry with these declared functions as the only converters of their targets."""
        added = ConverterRegistry().register(*converters)
        return self.without(*added) | added

    def without(self, *targets: Target | OpOverloadPacket[..., Any]) -> ConverterRegistry:
        """Return a new registry without the converters of these targets; an operator packet means all its overloads."""
        dropped = frozenset(concat(map(targets_of_key, targets)))
        return ConverterRegistry(d for d in self.declarations() if d.key not in dropped)

    def __or__(self, other: ConverterRegistry) -> ConverterRegistry:
        if not isinstance(other, ConverterRegistry):
            return NotImplemented
        return ConverterRegistry((*self.declarations(), *other.declarations()))

    def __eq__(self, other: object) -> bool:
        """Return whether two registries have the same declarations in the same order for each target."""
        return (
            dict(self.candidates) == dict(other.candidates) if isinstance(other, ConverterRegistry) else NotImplemented
        )

    def __hash__(self) -> int:
        return hash(frozenset(self.candidates.items()))

    def __repr__(self) -> str:
        return f"<ConverterRegistry: {len(self.declarations())} converters for {len(self)} targets>"


def _flatten_functions(converters: Iterable[Any]) -> Iterable[Callable[..., Any]]:
    for converter in converters:
        if isinstance(converter, Mapping):
            raise TypeError(f"register() takes functions, not {kind_of(converter)}; {_HOW}")
        if records_of(converter, ATTRIBUTE) is None and isinstance(converter, Iterable):
            yield from converter
        else:
            yield converter
