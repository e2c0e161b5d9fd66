"""Replace operators whose engines do not load by an alternative implementation, or run them in PyTorch."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

import torch
from attrs import define, evolve, field

from pipeline.aten.naming import node_name
from pipeline.aten.op_predicates import is_cheap
from pipeline.build.kernels import kernels
from pipeline.capture.capture import capture
from pipeline.capture.fake_tensors import argument_key
from pipeline.compiled import Compiled
from pipeline.compose.events import report
from pipeline.errors import ExecutionError
from pipeline.program import Partitioned, Program, Segment, Validated, is_operator
from pipeline.recipes import qualified_name
from pipeline.records.agreement import Healed
from pipeline.runtime.program_engines import LoadResults
from pipeline.settings import CompilationSettings
from pipeline.verification.alternative_lowerings import FORMS, IN_TORCH, Form, NotPossibleError
from pipeline.verification.healing import Decision, reformed
from pipeline.verification.recompile import Again
from pipeline.verification.search import Questions, smallest
from pipeline.verification.split import split

log = logging.getLogger(__name__)

ROUNDS: Final = 4
"""The number of compilations with more operators in other forms, before whole segments run in PyTorch."""
LIMIT: Final = 48
"""The most engines that are built to find one fault."""
FEW: Final = 8
"""The most operators of a fault that are tried one by one in another form."""


class Loader(Protocol):
    """A function that loads a program's engines, and returns those that do not load; None if this is unknown."""

    def __call__(self, compiled: Compiled, *, keep: bool) -> LoadResults | None: ...


def loadable(
    compiled: Compiled, found: LoadResults, loader: Loader, trial: Again, final: Again
) -> tuple[Compiled, LoadResults | None]:
    """Return a program whose engines load, in which faulty operators have an alternative, and the loader's result.

    Faulty operators are those that the error names, if an engine of only these does not load; otherwise bisection finds
    them. Operators with the same signature count as faulty, too. Each gets the first alternative implementation that
    loads.

    Args:
        compiled: the program.
        found: the engines that do not load.
        loader: the function that loads engines.
        trial, final: functions that compile a trial program, and the program to return.

    Raises:
        ExecutionError: not even an engine of one activation loads.
    """
    search = _Search(loader, trial)
    search.check(compiled.settings, found)
    now: LoadResults | None = found
    for last in (*[False] * ROUNDS, True):
        if now is None or not now.refused:
            break
        decisions = tuple(search.decisions(compiled, now, whole=last))
        rows = tuple(row for each in decisions for row in _rows(compiled.program, each))
        made = final.compiled(reformed(compiled, decisions, trial))
        compiled = evolve(made, healed=(*compiled.healed, *rows))
        now = loader(compiled, keep=True)
    if now is not None and now.refused:
        raise ExecutionError("; ".join(now.refused.values()))
    counts = Counter(f"{row.target} {row.action}" for row in compiled.healed)
    summary = ", ".join(f"{count} of {what}" if count > 1 else what for what, count in counts.items())
    log.warning(
        "engines did not load on this GPU; operators were compiled in other forms: %s (see coverage.healed)", summary
    )
    return compiled, now


@define
class _Search:
    """A search for operators whose engines do not load. ``known``: whether their engine loads, by signature."""

    loader: Loader
    again: Again
    known: dict[str, bool] = field(factory=dict)
    forms: dict[str, tuple[tuple[int, ...], Form]] = field(factory=dict)

    def check(self, settings: CompilationSettings, found: LoadResults) -> None:
        """Raise an `ExecutionError` if not even an engine of one activation loads."""
        program = capture(torch.nn.ReLU().eval(), (torch.ones(4),), settings=settings.evolve(torch_executed_ops=()))
        validated = self.again.validated(program)
        if self.refuses(validated, frozenset(validated.verdicts)):
            hint = "load_built_engines=False compiles for other GPUs; the reference executor runs on a CPU"
            raise ExecutionError(f"TensorRT loads no engine on this GPU: {'; '.join(found.refused.values())}", hint)

    def decisions(self, compiled: Compiled, found: LoadResults, *, whole: bool) -> Iterator[Decision]:
        """Return the decisions for operators in engines that do not load; ``whole``: all of them run in PyTorch."""
        nodes = {node.name: node for node in compiled.program.graph.nodes if is_operator(node)}
        taken = set[str]()
        for segment in compiled.partitioned.engine_segments:
            inside = [nodes[name] for name in segment.nodes if name in nodes and name not in taken]
            if segment.name not in found.refused or not inside:
                continue
            words = " ".join(found.refused[segment.name].split())
            words = words if len(words) <= 300 else f"{words[:297]}..."
            named = _named(compiled, segment, found.refused[segment.name])
            for fault in [inside] if whole else self.faults(compiled, inside, named):
                taken.update(node.name for node in fault)
                yield self.decision(compiled, fault, words, whole=whole)

    def faults(
        self, compiled: Compiled, nodes: Sequence[torch.fx.Node], named: frozenset[str]
    ) -> list[list[torch.fx.Node]]:
        """Return a smallest set of operators whose engine does not load, and all sets with the same signature."""
        partitioned, names = compiled.partitioned, [node.name for node in nodes]
        validated = Validated(partitioned.program, partitioned.verdicts)
        questions = Questions(lambda asked: self.refuses(validated, asked), LIMIT, {frozenset(names): True})
        among = [name for name in names if name in named]
        found = smallest(among if questions(among) else names, questions)
        places = [names.index(name) for name in found]
        offsets = [place - places[0] for place in places]
        self.known[_signature(compiled.program, [nodes[i] for i in places])] = True
        groups, taken = [[nodes[i] for i in places]], {*places}
        for first in range(len(nodes) - offsets[-1]):
            inside = [first + offset for offset in offsets]
            group = [nodes[i] for i in inside]
            if taken.isdisjoint(inside) and [n.target for n in group] == [n.target for n in groups[0]]:
                key = _signature(compiled.program, group)
                if key not in self.known:
                    self.known[key] = bool(self.refuses(validated, frozenset(n.name for n in group)))
                if self.known[key]:
                    groups.append(group)
                    taken.update(inside)
        return groups

    def decision(
        self, compiled: Compiled, fault: Sequence[torch.fx.Node], words: str, *, whole: bool = False
    ) -> Decision:
        """Return the decision for a fault, or for one of its operators: the first alternative that loads."""
        names = tuple(node.name for node in fault)
        together = f" together with {', '.join(names[1:])}" if 1 < len(names) <= FEW else ""
        reason = f"its engine does not load{together}: {words}"
        if whole:
            return Decision(names, IN_TORCH, reason)
        key = _signature(compiled.program, fault)
        if key not in self.forms:
            self.forms[key] = self.form(compiled, fault, reason)
        places, form = self.forms[key]
        return Decision(tuple(names[i] for i in places), form, reason)

    def form(self, compiled: Compiled, fault: Sequence[torch.fx.Node], reason: str) -> tuple[tuple[int, ...], Form]:
        """Return the first alternative implementation that loads, and the indices of the operators that get it."""
        everything = tuple(range(len(fault)))
        single = [(i,) for i in everything] if len(fault) <= FEW else []
        for form in FORMS:
            for places in dict.fromkeys([*single, everything]) if form is not IN_TORCH else ():
                if self.loads(compiled, fault, Decision(tuple(fault[i].name for i in places), form, reason)):
                    return places, form
        cheap = next((i for i, node in enumerate(fault) if is_cheap(node)), len(fault) - 1)
        return (cheap,), IN_TORCH

    def loads(self, compiled: Compiled, fault: Sequence[torch.fx.Node], decision: Decision) -> bool:
        """Return whether the engine of a fault's operators loads with the decided alternative."""
        try:
            validated = reformed(compiled, [decision], self.again)
        except NotPossibleError:
            return False
        before, names = compiled.partitioned.verdicts, {node.name for node in fault}
        new = {name for name in validated.verdicts if name not in before or name in names}
        return self.refuses(validated, frozenset(new)) is False

    def refuses(self, validated: Validated, names: frozenset[str]) -> bool | None:
        """Return whether the engine of these operators does not load; None if it cannot be built."""
        report(len(self.known), None, f"{len(names)} operators, to see whether their engine loads")
        partitioned = Partitioned(validated.program, (), validated.verdicts)
        try:
            made = self.again.finished(split(partitioned, names))
            found = self.loader(made, keep=False)
        except Exception as error:  # not possible to cut there, or the form does not build: try another
            log.debug("%d operators in TensorRT: %s", len(names), error)
            return None
        return None if found is None or not made.engines else bool(found.refused)


def _named(compiled: Compiled, segment: Segment, words: str) -> frozenset[str]:
    """Return the operators whose layers or kernels an error message names."""
    index = [network.name for network in compiled.networks].index(segment.name)
    engine, network = compiled.engines[index], compiled.networks[index]
    found = {node_name(part.strip(".")) for part in re.findall(r"[^\s\"'\[\](){},;+=]+", words)}
    with suppress(ValueError):
        own = compiled.layer_names(engine, network)
        layers = (x for kernel in kernels(engine.plan) if kernel.name in words for x in kernel.layers)
        found |= {node_name(own.get(x, x)) for x in layers}
    return frozenset(found)


def _signature(program: Program, nodes: Sequence[torch.fx.Node]) -> str:
    """Return a key that is equal for operators whose engines are equal."""
    known: Mapping[str, object] = program.constants
    rows = (
        (n.target, argument_key(n.args), argument_key(n.kwargs), [x.name in known for x in n.all_input_nodes])
        for n in nodes
    )
    return str(list(rows))


def _rows(program: Program, decision: Decision) -> Iterator[Healed]:
    targets = {node.name: qualified_name(node.target) for node in program.graph.nodes if node.name in decision.nodes}
    return (Healed(name, targets[name], decision.form.action, decision.reason) for name in decision.nodes)
