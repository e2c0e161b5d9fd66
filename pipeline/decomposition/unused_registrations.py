"""Report the user's converters and decompositions that were not used, each with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from pipeline.decomposition.candidates import Contents, Ways
from pipeline.decomposition.templates import Templates
from pipeline.errors import Unreached
from pipeline.program import Program, Verdict
from pipeline.recipes import qualified_name
from pipeline.records.executed_ops import entry_name, matches

Node = torch.fx.Node

_HIGH = "declare it with priority=ConverterPriority.HIGH"
_CALLS = "print(pipeline.capture(model, args)) shows what it calls"
_DYNAMIC = "declare it with supports_dynamic_shapes=True, if it takes them"


def unreached(
    program: Program,
    verdicts: Mapping[str, Verdict],
    claims: UserRegistrations,
    ways: Ways,
    refusals: Mapping[Declaration, Rejection],
) -> tuple[Unreached, ...]:
    """Return the user's converters and decompositions that were not used although the model calls their operators.

    ``refusals`` has the reasons of converters for calls that are no longer in the program. Nothing is traced if
    everything was used.
    """
    taken = [(verdict.target, verdict.choice) for verdict in verdicts.values() if verdict.choice is not None]
    used = {(target, choice.support, choice.priority) for target, choice in taken}
    idle = [d for d in claims.declarations if (qualified_name(d.key), d.support, d.priority) not in used]
    left = claims.decomposed - program.decomposed
    idle_entries = [] if claims.lookup.settings.torch_executed_ops == frozenset() else _unmatched(program, claims)
    if not idle and not left and not idle_entries:
        return ()
    search = _Search(program, verdicts, claims, ways, refusals, Templates(fake_mode(program.graph)))
    return (*search.converters(idle), *search.decompositions(left), *search.entries(idle_entries))


def _unmatched(program: Program, claims: UserRegistrations) -> list[Argument]:
    """Return the entries of ``torch_executed_ops`` that match no call; overloads of an operator count as one."""
    entries, known = claims.lookup.settings.torch_executed_ops, dict[tuple[Any, str], None]()
    for each in (program.source or program, program):
        known.update({(n.target, module_path(n)): None for n in each.graph.nodes if n.op == "call_function"})
    used = {e for e in entries if any(matches(e, target, path) for target, path in known)}
    operators = {e.overloadpacket for e in used if isinstance(e, OpOverload)}
    idle = {e.overloadpacket if isinstance(e, OpOverload) else e: e for e in sorted(entries - used, key=entry_name)}
    return [entry for key, entry in idle.items() if key not in operators]


@frozen(eq=False)
class _Search:
    program: Program
    verdicts: Mapping[str, Verdict]
    claims: UserRegistrations
    ways: Ways
    refusals: Mapping[Declaration, Rejection]
    templates: Templates

    def converters(self, idle: list[Declaration]) -> Iterator[Unreached]:
        """Yield the converters among ``idle`` whose operator the model calls, with the reasons why they are unused."""
        for declaration in idle:
            found = self.found(declaration.key)
            if found is not None:
                name = f"the converter {declaration.support.name} of {qualified_name(declaration.key)}"
                yield Unreached(name, *self.why(declaration, found))

    def decompositions(self, left: frozenset[Any]) -> Iterator[Unreached]:
        """Yield an entry for each unused decomposition of these operators, if the model calls the operator."""
        for op in sorted(left, key=str):
            found = self.found(op)
            if found is not None:
                name = f"the decomposition {function_name(self.ways.registered[op])} of {qualified_name(op)}"
                yield Unreached(name, *self.why_whole(op, found))

    def found(self, target: object) -> Node | None:
        """Return a call of an operator, or of a composite of it, in the current or captured program; else None."""
        direct: Node | None = next((node for node in self.program.graph.nodes if node.target is target), None)
        if direct is not None:
            return direct
        source = self.program.source or self.program
        contents = Contents(source, self.templates, Ways(self.ways.registered), lambda call: call.target is target)
        return contents.first(source.graph)

    def why(self, declaration: Declaration, found: Node) -> tuple[str, str]:
        """Return why a converter is not used, and a hint."""
        settings = self.claims.lookup.settings
        hint = _HIGH if declaration.priority is ConverterPriority.STANDARD else ""
        if is_kept_in_torch(found.target, found.meta, settings):
            return f"torch_executed_ops keeps {found.name} in PyTorch", ""
        if declaration in self.refusals:
            return str(self.refusals[declaration].reason), self.refusals[declaration].hint
        if found.target is not declaration.key and found.target in self.ways.disabled:
            return f"torch_disabled_decompositions keeps {qualified_name(found.target)} from being decomposed", ""
        if found.target is not declaration.key:
            if declaration in self.claims.high.get(declaration.key, ()):
                return f"it takes static shapes only, and {found.name} has sizes that vary", _DYNAMIC
            return f"{qualified_name(found.target)}, a composite of {qualified_name(declaration.key)}, has one", hint
        if found.name not in self.verdicts:
            own = self.ways.own(declaration.key)
            if own is not None:
                return f"the decomposition {function_name(own)} is applied first", hint
            return "its calls were folded into constants or merged into other operators", hint
        rejection = find_rejection(declaration.support, found, settings)
        if isinstance(rejection, Rejection):
            return f"{found.name}: {rejection.reason}", rejection.hint
        verdict = self.verdicts[found.name]
        if verdict.choice is None:
            return f"{found.name} runs in PyTorch: {'; '.join(reason.reason for reason in verdict.reasons)}", hint
        return f"{verdict.choice.support.name} comes before it, and accepts {found.name}", hint

    def entries(self, idle: list[object]) -> Iterator[Unreached]:
        """Yield the unused entries of ``torch_executed_ops``, with the model's composites of their operators."""
        for entry in idle:
            found = self.found(entry) if isinstance(entry, OpOverload) else None
            name = f"{entry_name(entry)} in torch_executed_ops"
            if found is not None:
                target = qualified_name(found.target)
                yield Unreached(name, f"the model calls {target}, a composite of this operator", f"name {target}")
            elif isinstance(entry, OpOverload | str):
                yield Unreached(name, "the model does not call it", _CALLS)
            else:
                paths = sorted({module_path(n) for n in self.program.graph.nodes if n.op == "call_function"})
                listed = ", ".join(map(repr, paths[:8]))
                yield Unreached(name, "it is false for every module", f"the paths are {listed}")

    def why_whole(self, op: object, found: Node) -> tuple[str, str]:
        """Return why a decomposition is not used, and a hint."""
        if is_kept_in_torch(found.target, found.meta, self.claims.lookup.settings):
            return f"torch_executed_ops keeps {found.name} in PyTorch", ""
        if op in self.ways.disabled:
            return "torch_disabled_decompositions has the operator", "leave one of the two out"
        if op in self.claims.high:
            return "a HIGH converter of the operator comes before it", "leave one of the two out"
        if found.target is not op:
            return f"{qualified_name(found.target)}, a composite of {qualified_name(op)}, is not decomposed", ""
        return "the decomposition returned NotImplemented or the operator itself for every call", ""
