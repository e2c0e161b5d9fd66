"""Heal a program: give nodes whose engine is wrong an alternative implementation, until results agree with eager."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from pipeline.compiled import Compiled
from pipeline.errors import AgreementError
from pipeline.frozen import FrozenDict
from pipeline.program import Validated
from pipeline.records.agreement import Agreement, Healed
from pipeline.verification.alternative_lowerings import FORMS, IN_TORCH, Form, NotPossibleError
from pipeline.verification.bisection import bisected
from pipeline.verification.measure import Comparison
from pipeline.verification.recompile import Again
from pipeline.verification.records import Bisection, Fault

log = logging.getLogger(__name__)


@frozen
class Decision:
    """A decision to compile nodes by an alternative implementation, and the reason."""

    nodes: tuple[str, ...]
    form: Form
    reason: str


def reformed(compiled: Compiled, decisions: Sequence[Decision], again: Again) -> Validated:
    """Return the program with these alternative implementations, and the verdicts on it. New nodes must run in engines;
    nodes that were healed before stay healed.

    Raises:
        NotPossibleError: nodes do not have this implementation.
    """
    program, verdicts = compiled.program, compiled.partitioned.verdicts
    changed = program
    for each in decisions:
        changed = each.form.rewritten(changed, each.nodes)
    validated = Validated(program, verdicts)
    if changed is not program:
        validated = again.validated(changed)
        there = validated.verdicts.keys() & verdicts.keys()
        healed = {row.node: verdicts[row.node] for row in compiled.healed if row.node in there}
        validated = evolve(validated, verdicts=FrozenDict({**validated.verdicts, **healed}))
    if new := [v for v in validated.verdicts.values() if not v.supported and v.node not in verdicts]:
        raise NotPossibleError("; ".join(map(str, new)))
    for each in decisions:
        validated = each.form.decided(validated, each.nodes, each.reason)
    return validated


def healed(compiled: Compiled, agreement: Agreement, comparison: Comparison, trial: Again, final: Again) -> Compiled:
    """Return a program that agrees with eager, in which the faulty nodes have an alternative implementation.

    agreement: the program's errors, some beyond their bound. trial, final: functions that compile a trial program, and
        the program to return.

    Raises:
        AgreementError: no alternative implementation makes the program agree.
    """
    found = bisected(compiled, agreement, comparison, trial)
    made = _Healing(compiled, found, comparison, trial).healed()
    if made is None:
        culprits = "no engine" if not found.faults else f"more than {', '.join(found.nodes)}"
        raise AgreementError(agreement, f"healing did not help: {culprits} is at fault; compare intermediate values")
    chosen, result = made
    if final is not trial:
        result = _Healing(compiled, found, comparison, final).compiled(chosen)
    rows = tuple(
        Healed(node, target, form.action, _reason(fault))
        for fault, form in chosen.items()
        for node, target in zip(fault.nodes, fault.targets, strict=True)
    )
    for row in rows:
        log.warning("verify: %s at node %s: %s", row.target, row.node, row.action)
    return evolve(result, agreement=comparison.agreement(result), healed=(*compiled.healed, *rows))


@frozen
class _Healing:
    """The search for alternative implementations of a program's faulty nodes."""

    program: Compiled
    found: Bisection
    comparison: Comparison
    again: Again

    def healed(self) -> tuple[Mapping[Fault, Form], Compiled] | None:
        """Return the alternative for each fault, and the program; None if it is wrong even with all faults in PyTorch.

        Each fault gets the first alternative that is correct while the remaining faults run in PyTorch.
        """
        chosen: dict[Fault, Form] = dict.fromkeys(self.found.faults, IN_TORCH)
        best: Compiled | None = None
        for fault in chosen:
            for form in FORMS:
                tried = self.tried({**chosen, fault: form})
                if tried is not None:
                    chosen[fault], best = form, tried
                    break
            else:
                return None
        return (chosen, best) if best is not None else None

    def tried(self, chosen: Mapping[Fault, Form]) -> Compiled | None:
        """Compile the program with these alternatives; return None if it does not agree with eager."""
        try:
            made = self.compiled(chosen)
            return made if self.comparison.agreement(made).holds else None
        except Exception as error:  # the form is not possible, does not compile or does not run: try the next one
            log.debug("%s: %s", [form.action for form in chosen.values()], error)
            return None

    def compiled(self, chosen: Mapping[Fault, Form]) -> Compiled:
        """Compile the program with these alternatives."""
        decisions = [Decision(fault.nodes, form, _reason(fault)) for fault, form in chosen.items()]
        return self.again.compiled(reformed(self.program, decisions, self.again))


def _reason(fault: Fault) -> str:
    others = f" together with {', '.join(fault.nodes[1:])}" if len(fault.nodes) > 1 else ""
    failure = f": {fault.failures[0]}" if fault.failures else ""
    return f"the node's engine is wrong{others}{failure}"
