"""Replace operators whose engines do not load on the GPU by an alternative implementation, or run them in PyTorch."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, Protocol

import torch
from attrs import define, evolve, field

from pipeline.aten.naming import node_name
from pipeline.aten.op_predicates import is_cheap
from pipeline.capture.capture import capture
from pipeline.capture.fake_tensors import fake_result_key
from pipeline.compiled import Compiled
from pipeline.compose.events import report
from pipeline.errors import ExecutionError
from pipeline.network.kernels import kernels
from pipeline.program import Partitioned, Program, Segment, Validated, is_operator
from pipeline.recipes import qualified_name
from pipeline.records.agreement import Healed
from pipeline.runtime.program_engines import LoadResults
from pipeline.settings import CompilationSettings
from pipeline.verification.alternative_lowerings import ALTERNATIVES, IN_TORCH, Alternative, NotPossibleError
from pipeline.verification.engines_in_torch import put_in_engines
from pipeline.verification.healing import Decision, apply_decisions
from pipeline.verification.recompile import Recompiler
from pipeline.verification.search import Predicate, find_smallest

log = logging.getLogger(__name__)

ROUNDS: Final = 4
"""The maximum number of recompilations with more operators replaced, before whole engines run in PyTorch."""
MAX_BUILDS: Final = 48
"""The maximum number of engines that are built to find one set of operators whose engine does not load."""
MAX_SINGLE_TRIALS: Final = 8
"""The maximum number of operators in a fault for which alternative implementations are tried one operator at a time."""


class Loader(Protocol):
    """A function that tries to load a program's engines, such as `try_loading_engines`. It returns TensorRT's messages
    for those that do not load; or None if loading cannot be tried, for example without a GPU."""

    def __call__(self, compiled: Compiled, *, keep: bool) -> LoadResults | None: ...


def make_loadable(
    compiled: Compiled, failures: LoadResults, loader: Loader, trial_compiler: Recompiler, final_compiler: Recompiler
) -> tuple[Compiled, LoadResults | None]:
    """Replace operators whose engines do not load. Return a program whose engines load, and the loader's result for it.

    The faulty operators are those that TensorRT's error message names, if an engine of these alone does not load
    either; otherwise bisection finds them. Operators with equal engines count as faulty, too. Each faulty operator gets
    the first alternative implementation that loads.

    Args:
        compiled: the program.
        failures: the engines that do not load, with TensorRT's messages.
        loader: the function that loads engines.
        trial_compiler, final_compiler: these compile a trial program, and the program to return.

    Raises:
        ExecutionError: no engine loads on this GPU, not even that of a model with a single ReLU; or engines still do
            not load after `ROUNDS` replacements.
    """
    search = _Search(loader, trial_compiler)
    search.check_one_engine_loads(compiled.settings, failures)
    failing: LoadResults | None = failures
    for last in (*[False] * ROUNDS, True):
        if failing is None or not failing.refused:
            break
        decisions = tuple(search.choose_alternatives(compiled, failing, in_torch=last))
        targets = {n.name: qualified_name(n.target) for n in compiled.program.graph.nodes if is_operator(n)}
        rows = (Healed(n, targets[n], each.alternative.action, each.reason) for each in decisions for n in each.nodes)
        recompiled = final_compiler.compile_validated(apply_decisions(compiled, decisions, trial_compiler))
        compiled = evolve(recompiled, healed=(*compiled.healed, *rows))
        failing = loader(compiled, keep=True)
    if failing is not None and failing.refused:
        found = "; ".join(failing.refused.values())
        hint = "list operators in torch_executed_ops, or set load_built_engines=False to compile for other GPUs"
        raise ExecutionError(f"engines do not load even after their operators were replaced: {found}", hint)
    counts = Counter(f"{row.target} {row.action}" for row in compiled.healed)
    summary = ", ".join(f"{count} of {operator}" if count > 1 else operator for operator, count in counts.items())
    log.warning("engines did not load on this GPU, so operators were replaced: %s (see coverage.healed)", summary)
    return compiled, failing


@define
class _Search:
    """A search for operators whose engines do not load, and for implementations that do. ``fails``: for each engine
    that was tried, by `_engine_signature`, whether it fails to load. ``alternatives``: the choice, by signature."""

    loader: Loader
    recompiler: Recompiler
    fails: dict[str, bool] = field(factory=dict)
    alternatives: dict[str, tuple[tuple[int, ...], Alternative]] = field(factory=dict)

    def check_one_engine_loads(self, settings: CompilationSettings, failures: LoadResults) -> None:
        """Raise an `ExecutionError` if no engine loads on this GPU: not even that of a model with a single ReLU. The
        message quotes TensorRT's messages in ``failures``."""
        program = capture(torch.nn.ReLU().eval(), (torch.ones(4),), settings=settings.evolve(torch_executed_ops=()))
        validated = self.recompiler.validate(program)
        if self.fails_to_load(validated, frozenset(validated.verdicts)):
            hint = "set load_built_engines=False to compile for other GPUs, or use the CPU reference executor"
            raise ExecutionError(f"TensorRT loads no engine on this GPU: {'; '.join(failures.refused.values())}", hint)

    def choose_alternatives(self, compiled: Compiled, failures: LoadResults, *, in_torch: bool) -> Iterator[Decision]:
        """Yield a `Decision` for each smallest set of operators that keeps an engine in ``failures`` from loading: an
        alternative implementation. With ``in_torch``, yield one for each engine: all its operators run in PyTorch."""
        nodes = {node.name: node for node in compiled.program.graph.nodes if is_operator(node)}
        decided = set[str]()
        for segment in compiled.partitioned.engine_segments:
            inside = [nodes[name] for name in segment.nodes if name in nodes and name not in decided]
            if segment.name not in failures.refused or not inside:
                continue
            message = " ".join(failures.refused[segment.name].split())
            message = message if len(message) <= 300 else f"{message[:297]}..."
            named = _operators_in_message(compiled, segment, failures.refused[segment.name])
            for fault in [inside] if in_torch else self.find_faults(compiled, inside, named):
                decided.update(node.name for node in fault)
                yield self.decide(compiled, fault, message, in_torch=in_torch)

    def find_faults(
        self, compiled: Compiled, nodes: Sequence[torch.fx.Node], suspects: frozenset[str]
    ) -> list[list[torch.fx.Node]]:
        """Find a smallest set of ``nodes`` whose engine does not load; only among the ``suspects``, if their engine
        does not load. Return a list: this set, then all other sets of ``nodes`` that call the same operators and whose
        engines do not load either."""
        partitioned, names = compiled.partitioned, [node.name for node in nodes]
        validated = Validated(partitioned.program, partitioned.verdicts)
        is_wrong = Predicate(lambda subset: self.fails_to_load(validated, subset), MAX_BUILDS, {frozenset(names): True})
        candidates = [name for name in names if name in suspects]
        fault = find_smallest(candidates if is_wrong(candidates) else names, is_wrong)
        indices = [names.index(name) for name in fault]
        offsets = [index - indices[0] for index in indices]
        self.fails[_engine_signature(compiled.program, [nodes[i] for i in indices])] = True
        groups, taken = [[nodes[i] for i in indices]], {*indices}
        for first in range(len(nodes) - offsets[-1]):
            inside = [first + offset for offset in offsets]
            group = [nodes[i] for i in inside]
            if taken.isdisjoint(inside) and [n.target for n in group] == [n.target for n in groups[0]]:
                key = _engine_signature(compiled.program, group)
                if key not in self.fails:
                    self.fails[key] = bool(self.fails_to_load(validated, frozenset(n.name for n in group)))
                if self.fails[key]:
                    groups.append(group)
                    taken.update(inside)
        return groups

    def decide(
        self, compiled: Compiled, fault: Sequence[torch.fx.Node], message: str, *, in_torch: bool = False
    ) -> Decision:
        """Return the decision how the nodes of ``fault``, or one of them, are implemented instead: by the first
        alternative that loads, or in PyTorch (``in_torch``). ``message``: TensorRT's error message."""
        names = tuple(node.name for node in fault)
        together = f" together with {', '.join(names[1:])}" if 1 < len(names) <= MAX_SINGLE_TRIALS else ""
        reason = f"its engine does not load{together}: {message}"
        if in_torch:
            return Decision(names, IN_TORCH, reason)
        key = _engine_signature(compiled.program, fault)
        if key not in self.alternatives:
            self.alternatives[key] = self.find_alternative(compiled, fault, reason)
        indices, alternative = self.alternatives[key]
        return Decision(tuple(names[i] for i in indices), alternative, reason)

    def find_alternative(
        self, compiled: Compiled, fault: Sequence[torch.fx.Node], reason: str
    ) -> tuple[tuple[int, ...], Alternative]:
        """Return the indices in ``fault`` of the nodes to replace, and the first alternative implementation of these
        with which the engine of ``fault`` loads, or PyTorch. ``reason``: recorded with each alternative tried."""
        everything = tuple(range(len(fault)))
        single = [(i,) for i in everything] if len(fault) <= MAX_SINGLE_TRIALS else []
        for alternative in ALTERNATIVES:
            for indices in dict.fromkeys([*single, everything]) if alternative is not IN_TORCH else ():
                decision = Decision(tuple(fault[i].name for i in indices), alternative, reason)
                if self.loads_with(compiled, fault, decision):
                    return indices, alternative
        cheap = next((i for i, node in enumerate(fault) if is_cheap(node)), len(fault) - 1)
        return (cheap,), IN_TORCH

    def loads_with(self, compiled: Compiled, fault: Sequence[torch.fx.Node], decision: Decision) -> bool:
        """Return whether an engine of the faulty operators loads if they are compiled as decided."""
        try:
            validated = apply_decisions(compiled, [decision], self.recompiler)
        except NotPossibleError:
            return False
        before, names = compiled.partitioned.verdicts, {node.name for node in fault}
        new = {name for name in validated.verdicts if name not in before or name in names}
        return self.fails_to_load(validated, frozenset(new)) is False

    def fails_to_load(self, validated: Validated, names: frozenset[str]) -> bool | None:
        """Return whether the engine of these operators fails to load; None if it cannot be built."""
        report(len(self.fails), None, f"{len(names)} operators, to see whether their engine loads")
        partitioned = Partitioned(validated.program, (), validated.verdicts)
        try:
            compiled = self.recompiler.compile_partitioned(put_in_engines(partitioned, names))
            failures = self.loader(compiled, keep=False)
        except Exception as error:  # not possible to cut there, or the form does not build: try another
            log.debug("%d operators in TensorRT: %s", len(names), error)
            return None
        return None if failures is None or not compiled.engines else bool(failures.refused)


def _operators_in_message(compiled: Compiled, segment: Segment, message: str) -> frozenset[str]:
    """Return the operators whose layers or kernels are named in TensorRT's error message."""
    index = [network.name for network in compiled.networks].index(segment.name)
    engine, network = compiled.engines[index], compiled.networks[index]
    found = {node_name(part.strip(".")) for part in re.findall(r"[^\s\"'\[\](){},;+=]+", message)}
    with suppress(ValueError):
        layer_names = compiled.layer_names(engine, network)
        layers = (x for kernel in kernels(engine.plan) if kernel.name in message for x in kernel.layers)
        found |= {node_name(layer_names.get(x, x)) for x in layers}
    return frozenset(found)


def _engine_signature(program: Program, nodes: Sequence[torch.fx.Node]) -> str:
    """Return a key that is equal for sets of operators whose engines are equal."""
    constant = [[x.name in program.constants for x in n.all_input_nodes] for n in nodes]
    keys = [(n.target, fake_result_key(n.args), fake_result_key(n.kwargs)) for n in nodes]
    return f"{keys} {constant}"
