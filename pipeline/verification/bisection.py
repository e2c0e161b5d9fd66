"""Find by bisection which nodes TensorRT computes wrongly: run some nodes in TensorRT and all others in PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import torch
from attrs import define, field

from pipeline.compiled import Compiled
from pipeline.compose.events import report
from pipeline.errors import source_line
from pipeline.program import Program, is_operator
from pipeline.recipes import qualified_name
from pipeline.records.agreement import Agreement, OutputAgreement
from pipeline.verification.eager import output_ancestors
from pipeline.verification.engines_in_torch import put_in_engines
from pipeline.verification.measure import Comparison
from pipeline.verification.recompile import Recompiler
from pipeline.verification.records import Bisection, Fault
from pipeline.verification.script import fault_script
from pipeline.verification.search import Predicate, find_wrong_sets

log = logging.getLogger(__name__)

MAX_BUILDS = 200
"""The default maximum number of programs that one search compiles."""


def bisect_program(
    compiled: Compiled,
    agreement: Agreement,
    comparison: Comparison,
    recompiler: Recompiler,
    max_builds: int = MAX_BUILDS,
) -> Bisection:
    """Find the smallest sets of nodes that make a program's results wrong, even if only these run in TensorRT.

    agreement: the errors of the whole program. comparison: eager's results. recompiler: the stages that compile the
        program with some nodes in PyTorch. max_builds: how often; then the sets found so far are returned.
    """
    trials = _PartialCompilations(compiled, agreement, comparison, recompiler)
    nodes = suspect_operators(compiled, agreement, comparison)
    if agreement.holds or not nodes:
        return Bisection((), 1, agreement)
    is_wrong = Predicate(trials.has_wrong_results, max_builds, {frozenset(nodes): True}, count=1)
    result = find_wrong_sets(nodes, is_wrong)
    faults = tuple(_to_fault(compiled.program, each, trials.failures.get(frozenset(each), ())) for each in result.sets)
    text = fault_script(compiled.program, comparison, faults[0], agreement) if faults else ""
    return Bisection(faults, is_wrong.count, agreement, result.complete, text)


@define
class _PartialCompilations:
    """Compilations of a program with only some nodes in TensorRT, which show whether these nodes make outputs wrong."""

    compiled: Compiled
    agreement: Agreement
    comparison: Comparison
    recompiler: Recompiler
    failures: dict[frozenset[str], tuple[OutputAgreement, ...]] = field(factory=dict)

    def has_wrong_results(self, nodes: frozenset[str]) -> bool | None:
        """Return whether results are wrong with only these nodes in TensorRT; None if that does not compile or run."""
        report(len(self.failures), None, f"{len(nodes)} operators in TensorRT")
        only = frozenset((row.output, row.sample) for row in self.agreement.failures)
        try:
            part = self.recompiler.compile_partitioned(put_in_engines(self.compiled.partitioned, nodes))
            failures = self.comparison.measure_agreement(part, only).failures
            if any(row.raised for row in failures) and not any(row.raised for row in self.agreement.failures):
                return None  # the cut is the reason that it does not run
            self.failures[nodes] = failures
        except Exception as error:  # not possible to cut there: try another cut
            log.debug("%d operators in TensorRT: %s", len(nodes), error)
            return None
        return bool(self.failures[nodes])


def suspect_operators(compiled: Compiled, agreement: Agreement, comparison: Comparison) -> list[str]:
    """Return the operators in engines on which at least one wrong output depends, in execution order."""
    wrong = {row.output for row in agreement.failures}
    above = output_ancestors(compiled.program)
    nodes = {n for name, nodes in zip(comparison.names, above, strict=True) if name in wrong for n in nodes}
    inside = {name for segment in compiled.partitioned.engine_segments for name in segment.nodes}
    return [n.name for n in compiled.program.graph.nodes if n in nodes and n.name in inside and is_operator(n)]


def _to_fault(program: Program, names: Sequence[str], failures: Iterable[OutputAgreement]) -> Fault:
    """Create the fault of the named nodes; ``failures``: outputs that are wrong with only these nodes in TensorRT."""
    by_name: dict[str, torch.fx.Node] = {n.name: n for n in program.graph.nodes}
    nodes = [by_name[name] for name in names]
    targets = tuple(qualified_name(node.target) for node in nodes)
    return Fault(tuple(names), targets, tuple(map(source_line, nodes)), tuple(failures))
