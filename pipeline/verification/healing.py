"""Heal a program: give nodes with wrong results alternative implementations until the results agree with eager's."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from pipeline.compiled import Compiled
from pipeline.errors import AgreementError
from pipeline.frozen import FrozenDict
from pipeline.program import Validated
from pipeline.records.agreement import Agreement, Healed
from pipeline.verification.alternative_lowerings import ALTERNATIVES, IN_TORCH, Alternative, NotPossibleError
from pipeline.verification.bisection import bisect_program
from pipeline.verification.measure import Comparison
from pipeline.verification.recompile import Recompiler
from pipeline.verification.records import Bisection, Fault

log = logging.getLogger(__name__)


@frozen
class Decision:
    """A decision to compile certain nodes by an alternative implementation, and the reason for it."""

    nodes: tuple[str, ...]
    alternative: Alternative
    reason: str


def apply_decisions(compiled: Compiled, decisions: Sequence[Decision], recompiler: Recompiler) -> Validated:
    """Give nodes the alternative implementations in ``decisions``; return the changed program with its verdicts, which
    ``recompiler`` computes. Nodes that were healed before (``compiled.healed``) keep their implementations.

    Raises:
        NotPossibleError: nodes do not have this implementation, or no converter accepts a node that it creates.
    """
    program, verdicts = compiled.program, compiled.partitioned.verdicts
    changed = program
    for decision in decisions:
        changed = decision.alternative.rewrite(changed, decision.nodes)
    validated = Validated(program, verdicts)
    if changed is not program:
        validated = recompiler.validate(changed)
        remaining = validated.verdicts.keys() & verdicts.keys()
        healed = {row.node: verdicts[row.node] for row in compiled.healed if row.node in remaining}
        validated = evolve(validated, verdicts=FrozenDict({**validated.verdicts, **healed}))
    if new := [v for v in validated.verdicts.values() if not v.supported and v.node not in verdicts]:
        raise NotPossibleError(f"no converter accepts these new nodes of an alternative: {'; '.join(map(str, new))}")
    for decision in decisions:
        validated = decision.alternative.decide(validated, decision.nodes, decision.reason)
    return validated


def heal(
    compiled: Compiled,
    agreement: Agreement,
    comparison: Comparison,
    trial_compiler: Recompiler,
    final_compiler: Recompiler,
) -> Compiled:
    """Return a program that agrees with eager, because its faulty nodes are compiled by alternative implementations.

    agreement: the program's errors, some beyond their bound. comparison: eager's results, with which each program is
        compared. trial_compiler: compiles the programs that are tried. final_compiler: compiles the program to return.

    Raises:
        AgreementError: no alternative implementation makes the program agree.
    """
    bisection = bisect_program(compiled, agreement, comparison, trial_compiler)
    healing = _Healing(compiled, bisection, comparison, trial_compiler).choose_alternatives()
    if healing is None:
        where = f"not only at {', '.join(bisection.nodes)}" if bisection.faults else "in no part that was run alone"
        advice = "list operators in torch_executed_ops, so that PyTorch runs them"
        raise AgreementError(agreement, f"healing failed: engines return wrong values {where}; {advice}")
    chosen, result = healing
    if final_compiler is not trial_compiler:
        result = _Healing(compiled, bisection, comparison, final_compiler).compile_with_alternatives(chosen)
    rows = tuple(
        Healed(node, target, alternative.action, _fault_reason(fault))
        for fault, alternative in chosen.items()
        for node, target in zip(fault.nodes, fault.targets, strict=True)
    )
    for row in rows:
        log.warning("verify: %s at node %s: %s", row.target, row.node, row.action)
    return evolve(result, agreement=comparison.measure_agreement(result), healed=(*compiled.healed, *rows))


@frozen
class _Healing:
    """The search for implementations of the nodes in ``bisection`` that agree with eager: it compiles the program with
    one of `ALTERNATIVES` after another."""

    program: Compiled
    bisection: Bisection
    comparison: Comparison
    recompiler: Recompiler

    def choose_alternatives(self) -> tuple[Mapping[Fault, Alternative], Compiled] | None:
        """Return an alternative implementation for each fault, and the program compiled with these; None if it is wrong
        even with all faults in PyTorch.

        Each fault gets the first alternative that is correct while the remaining faults run in PyTorch.
        """
        chosen: dict[Fault, Alternative] = dict.fromkeys(self.bisection.faults, IN_TORCH)
        best: Compiled | None = None
        for fault in chosen:
            for alternative in ALTERNATIVES:
                tried = self.compile_if_correct({**chosen, fault: alternative})
                if tried is not None:
                    chosen[fault], best = alternative, tried
                    break
            else:
                return None
        return (chosen, best) if best is not None else None

    def compile_if_correct(self, chosen: Mapping[Fault, Alternative]) -> Compiled | None:
        """Compile the program with an alternative for each fault (a set of nodes with wrong results). Return None if
        compilation fails, or the results do not agree with eager."""
        try:
            compiled = self.compile_with_alternatives(chosen)
            return compiled if self.comparison.measure_agreement(compiled).holds else None
        except Exception as error:  # the form is not possible, does not compile or does not run: try the next one
            log.debug("%s: %s", [alternative.action for alternative in chosen.values()], error)
            return None

    def compile_with_alternatives(self, chosen: Mapping[Fault, Alternative]) -> Compiled:
        """Compile the program with these alternative implementations of its faults."""
        decisions = [Decision(fault.nodes, alternative, _fault_reason(fault)) for fault, alternative in chosen.items()]
        return self.recompiler.compile_validated(apply_decisions(self.program, decisions, self.recompiler))


def _fault_reason(fault: Fault) -> str:
    """Return, for reports, why a fault's nodes need another implementation: which output is wrong because of them."""
    others = f" together with {', '.join(fault.nodes[1:])}" if len(fault.nodes) > 1 else ""
    failure = f": {fault.failures[0]}" if fault.failures else ""
    return f"an engine with this node returns wrong values{others}{failure}"
