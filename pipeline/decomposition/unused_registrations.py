"""Report the user's converters and decompositions that were not used, each with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from attrs import frozen
from torch._ops import OpOverload

from pipeline.aten.naming import module_path
from pipeline.aten.support import ConverterPriority, Declaration, Rejection, function_name
from pipeline.aten.types import Argument
from pipeline.capture.fake_tensors import fake_mode
from pipeline.converters.lookup import find_rejection, is_kept_in_torch
from pipeline.converters.user_registrations import UserRegistrations
from pipeline.decomposition.candidates import CallSearch, Decompositions
from pipeline.decomposition.templates import Templates
from pipeline.errors import Unreached
from pipeline.program import Program, Verdict
from pipeline.recipes import qualified_name
from pipeline.records.executed_ops import entry_matches_node, entry_name

Node = torch.fx.Node

_HIGH = "declare it with priority=ConverterPriority.HIGH"
_CALLS = "print(pipeline.capture(model, args)) shows what it calls"
_DYNAMIC = "declare it with supports_dynamic_shapes=True, if it takes them"


def unused_registrations(
    program: Program,
    verdicts: Mapping[str, Verdict],
    claims: UserRegistrations,
    choices: Decompositions,
    refusals: Mapping[Declaration, Rejection],
) -> tuple[Unreached, ...]:
    """Return an `Unreached`, with the reason, for each of the user's converters, decompositions, and entries of
    ``torch_executed_ops`` and ``refittable_weights`` that was not used; for converters and decompositions only if the
    model calls their operators.

    ``verdicts``: for each call, by name, the converter that is used. ``claims``: what the user registered. ``choices``:
    all decompositions. ``refusals``: for each user's converter that refused a call, the reason.
    """
    taken = [(verdict.target, verdict.choice) for verdict in verdicts.values() if verdict.choice is not None]
    used = {(target, choice.support, choice.priority) for target, choice in taken}
    idle = [d for d in claims.declarations if (qualified_name(d.key), d.support, d.priority) not in used]
    left = claims.decomposed_operators - program.decomposed
    idle_entries = [] if claims.lookup.settings.torch_executed_ops == frozenset() else _unmatched_ops(program, claims)
    weights = tuple(_unmatched_weights(program, claims.lookup.settings.refittable_weights))
    if not idle and not left and not idle_entries:
        return weights
    search = _UnusedSearch(program, verdicts, claims, choices, refusals, Templates(fake_mode(program.graph)))
    found = (*search.unused_converters(idle), *search.unused_decompositions(left), *search.unused_entries(idle_entries))
    return found + weights


def _unmatched_ops(program: Program, claims: UserRegistrations) -> list[Argument]:
    """Return the entries of ``torch_executed_ops`` that match no call; overloads of an operator count as one."""
    entries, known = claims.lookup.settings.torch_executed_ops, dict[tuple[Any, str], None]()
    for each in (program.source or program, program):
        known.update({(n.target, module_path(n)): None for n in each.graph.nodes if n.op == "call_function"})
    used = {e for e in entries if any(entry_matches_node(e, target, path) for target, path in known)}
    operators = {e.overloadpacket for e in used if isinstance(e, OpOverload)}
    idle = {e.overloadpacket if isinstance(e, OpOverload) else e: e for e in sorted(entries - used, key=entry_name)}
    return [entry for key, entry in idle.items() if key not in operators]


def _unmatched_weights(program: Program, patterns: Iterable[str]) -> Iterator[Unreached]:
    """Yield an `Unreached` for each pattern of ``refittable_weights`` that matches no weight of the program."""
    names = sorted({recipe.name for recipe in program.constants.values()})
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            hint = f"its weights are {', '.join(names[:8])}" if names else ""
            yield Unreached(f"{pattern!r} in refittable_weights", "the program has no weight of this name", hint)


@frozen(eq=False)
class _UnusedSearch:
    program: Program
    verdicts: Mapping[str, Verdict]
    claims: UserRegistrations
    choices: Decompositions
    refusals: Mapping[Declaration, Rejection]
    templates: Templates

    def unused_converters(self, declarations: list[Declaration]) -> Iterator[Unreached]:
        """Yield an `Unreached`, which states the reason, for each unused converter whose operator the model calls.
        ``declarations``: all unused converters."""
        for declaration in declarations:
            found = self.find_call(declaration.key)
            if found is not None:
                name = f"the converter {declaration.support.name} of {qualified_name(declaration.key)}"
                yield Unreached(name, *self.reason_and_hint_for_converter(declaration, found))

    def unused_decompositions(self, operators: frozenset[Any]) -> Iterator[Unreached]:
        """Yield an `Unreached`, which states the reason, for each unused decomposition whose operator the model calls.
        ``operators``: all operators whose decomposition by the user was not used."""
        for op in sorted(operators, key=str):
            found = self.find_call(op)
            if found is not None:
                name = f"the decomposition {function_name(self.choices.registered[op])} of {qualified_name(op)}"
                yield Unreached(name, *self.reason_and_hint_for_decomposition(op, found))

    def find_call(self, target: object) -> Node | None:
        """Return a call of the operator ``target`` in the program. If there is none, return a call in the captured
        program, of the operator or of a composite that decomposes to it; else None."""
        direct: Node | None = next((node for node in self.program.graph.nodes if node.target is target), None)
        if direct is not None:
            return direct
        source = self.program.source or self.program
        choices = Decompositions(self.choices.registered)
        return CallSearch(source, self.templates, choices, lambda call: call.target is target).find_wanted(source.graph)

    def reason_and_hint_for_converter(self, declaration: Declaration, call: Node) -> tuple[str, str]:
        """Return why a user's converter was not used for this call, and a hint."""
        settings = self.claims.lookup.settings
        hint = _HIGH if declaration.priority is ConverterPriority.STANDARD else ""
        if is_kept_in_torch(call.target, call.meta, settings):
            return f"torch_executed_ops keeps {call.name} in PyTorch", ""
        if declaration in self.refusals:
            return str(self.refusals[declaration].reason), self.refusals[declaration].hint
        if call.target is not declaration.key and call.target in self.choices.disabled:
            return f"torch_disabled_decompositions keeps {qualified_name(call.target)} from being decomposed", ""
        if call.target is not declaration.key:
            if declaration in self.claims.high_priority.get(declaration.key, ()):
                return f"it supports static shapes only, and {call.name} has dynamic sizes", _DYNAMIC
            composite = f"{qualified_name(call.target)}, a composite of {qualified_name(declaration.key)}"
            return f"{composite}, has a converter", hint
        if call.name not in self.verdicts:
            own = self.choices.registered_for(declaration.key)
            if own is not None:
                return f"the decomposition {function_name(own)} is applied first", hint
            return "its calls were folded into constants or merged into other operators", hint
        rejection = find_rejection(declaration.support, call, settings)
        if isinstance(rejection, Rejection):
            return f"{call.name}: {rejection.reason}", rejection.hint
        verdict = self.verdicts[call.name]
        if verdict.choice is None:
            return f"{call.name} runs in PyTorch: {'; '.join(reason.reason for reason in verdict.reasons)}", hint
        return f"{verdict.choice.support.name} has precedence, and accepts {call.name}", hint

    def unused_entries(self, unmatched: list[object]) -> Iterator[Unreached]:
        """Yield a record, with the reason, for each of these entries of ``torch_executed_ops`` that match no call."""
        for entry in unmatched:
            found = self.find_call(entry) if isinstance(entry, OpOverload) else None
            name = f"{entry_name(entry)} in torch_executed_ops"
            if found is not None:
                target = qualified_name(found.target)
                yield Unreached(name, f"the model calls {target}, a composite of this operator", f"name {target}")
            elif isinstance(entry, OpOverload | str):
                yield Unreached(name, "the model does not call it", _CALLS)
            else:
                paths = sorted({module_path(n) for n in self.program.graph.nodes if n.op == "call_function"})
                listed = ", ".join(map(repr, paths[:8]))
                yield Unreached(name, "it returns False for every module", f"the paths are {listed}")

    def reason_and_hint_for_decomposition(self, op: object, call: Node) -> tuple[str, str]:
        """Return why a user's decomposition was not used for this call, and a hint."""
        if is_kept_in_torch(call.target, call.meta, self.claims.lookup.settings):
            return f"torch_executed_ops keeps {call.name} in PyTorch", ""
        if op in self.choices.disabled:
            return "torch_disabled_decompositions has the same operator", "remove it there, or this decomposition"
        if op in self.claims.high_priority:
            return "a HIGH converter of the operator is used instead of it", "remove one of the two"
        if call.target is not op:
            return f"{qualified_name(call.target)}, a composite of {qualified_name(op)}, is not decomposed", ""
        own = self.choices.registered_for(op)
        assert own is not None
        found = self.templates.find_or_reason(own, op, call.args, call.kwargs, call.meta.get("val"))
        if isinstance(found, str):
            return f"for {call.name}, {found}", ""
        return "its calls were folded into constants, or are in the decomposition of another call of it", ""
