"""Find the converters and decompositions that the user registered, in addition to those of this package."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from operator import attrgetter
from typing import Any, Final

from attrs import field, frozen
from toolz import groupby
from torch.fx import Node

from pipeline.aten.support import Choice, ConverterPriority, Declaration, Target
from pipeline.converters import DECOMPOSITIONS, DYNAMO_CONVERTERS
from pipeline.converters.decompositions import DecompositionTable, Op
from pipeline.converters.lookup import BoundRegistry, find_rejection, is_kept_in_torch, reject_dynamic_sizes
from pipeline.converters.registry import ConverterRegistry
from pipeline.settings import CompilationSettings

BUILT_IN: Final = frozenset(DYNAMO_CONVERTERS.declarations())


@frozen(eq=False, slots=False)
class UserRegistrations:
    """The converters and decompositions that the user registered; ``lookup`` has the compilation settings.

    Users' validators are called only in the stage `validate`, where the graph is complete. For earlier stages, a user's
    converter accepts each call of its operator, except dynamic sizes that it does not support.
    """

    lookup: BoundRegistry = field(repr=False)
    decompositions: DecompositionTable = field(repr=False)
    declarations: tuple[Declaration, ...]

    @classmethod
    def of(
        cls, registry: ConverterRegistry, decompositions: DecompositionTable, settings: CompilationSettings
    ) -> UserRegistrations:
        """Return the user's converters in ``registry`` and decompositions: those that this package does not have."""
        added = () if registry is DYNAMO_CONVERTERS else registry.declarations()
        users = tuple(declaration for declaration in added if declaration not in BUILT_IN)
        return cls(registry.bind(settings), decompositions, users)

    @cached_property
    def decomposed_operators(self) -> frozenset[Op]:
        """The operators for which the user registered a decomposition."""
        own: DecompositionTable = self.decompositions
        return frozenset(op for op, function in own.items() if DECOMPOSITIONS.get(op) is not function)

    @cached_property
    def high_priority(self) -> dict[Target, tuple[Declaration, ...]]:
        """The user's converters of HIGH priority, by operator."""
        high = [d for d in self.declarations if d.priority is ConverterPriority.HIGH]
        return {target: tuple(found) for target, found in groupby(attrgetter("key"), high).items()}

    @cached_property
    def claimed_targets(self) -> frozenset[Target]:
        """Operators with a converter (HIGH) or decomposition of the user; composites that call them are decomposed."""
        return frozenset(self.high_priority) | self.decomposed_operators

    def may_convert(self, target: Any, args: Any, kwargs: Any, result: Any) -> bool:
        """Return whether a user's HIGH-priority converter may accept a call (with this result): do not decompose it."""
        return any(
            reject_dynamic_sizes(d.support, self.lookup.settings, args, kwargs, result) is None
            for d in self.high_priority.get(target, ())
        )

    def is_from_user(self, choice: Choice | None) -> bool:
        """Return whether a chosen converter was registered by the user."""
        users = ((declaration.support, declaration.priority) for declaration in self.declarations)
        return choice is not None and (choice.support, choice.priority) in users

    def accepts(self, node: Node, selects: Callable[[Declaration], bool] = lambda declaration: True) -> bool:
        """Return whether a converter of this package, or a user's for which ``selects`` is true, accepts a node."""
        if is_kept_in_torch(node.target, node.meta, self.lookup.settings):
            return False
        return any(self._accepts(d, node, selects) for d in self.lookup.candidates.get(node.target, ()))

    def accepts_surely(self, node: Node) -> bool:
        """Return whether a converter surely accepts a node: this package's, or a user's without a validator."""
        return self.accepts(node, lambda declaration: declaration.support.capability_validator is None)

    def accepts_without_users(self, node: Node) -> bool:
        """Return whether a converter of this package accepts a node; the user's converters are ignored."""
        return self.accepts(node, lambda declaration: False)

    def _accepts(self, declaration: Declaration, node: Node, selects: Callable[[Declaration], bool]) -> bool:
        """Return whether a converter accepts a node; for a user's, ``selects(declaration)`` replaces the validator."""
        support, settings = declaration.support, self.lookup.settings
        if declaration in BUILT_IN:
            return find_rejection(support, node, settings) is None
        static = reject_dynamic_sizes(support, settings, node.args, node.kwargs, node.meta.get("val"))
        return selects(declaration) and static is None
