"""Turn engines of a program into segments of PyTorch, or the whole program into one that runs what was captured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from attrs import evolve, field, frozen

from pipeline.compiled import Compiled, RefitMap
from pipeline.compose.pipelines import as_stage
from pipeline.compose.stage_signature import AnyStage
from pipeline.converters.declare import Rejection
from pipeline.errors import source_line
from pipeline.frozen import FrozenDict
from pipeline.network.engine import Engine
from pipeline.partitioning.assemble import Group, assemble
from pipeline.program import Built, Converted, Validated, Verdict, is_operator
from pipeline.recipes import qualified_name
from pipeline.verification.recompile import Again
from pipeline.verification.split import refused


def in_torch(compiled: Compiled, reasons: Mapping[str, Rejection], stages: Sequence[AnyStage]) -> Compiled:
    """Return a program in which these engines are segments of PyTorch, each for its reason. Other engines stay.

    Raises:
        ValueError: a segment has no operator of its own.
    """
    partitioned, program = compiled.partitioned, compiled.program
    operators = {node.name for node in program.graph.nodes if is_operator(node)}
    counts = Counter(name for segment in partitioned.segments for name in segment.nodes)
    groups: list[Group] = []
    rejections = dict[str, Rejection]()
    for segment in partitioned.segments:
        own = [name for name in segment.nodes if name in operators and counts[name] == 1]
        rejections |= dict.fromkeys(own, reasons[segment.name]) if segment.name in reasons else {}
        groups.append(("torch" if segment.name in reasons else segment.kind, own))
    validated = refused(Validated(program, partitioned.verdicts), rejections)
    assembled = assemble(validated, groups, {})
    if len(assembled.segments) != len(partitioned.segments):
        raise ValueError("a segment has no operator of its own, so engines would get other names")
    kept = Kept({engine.name: engine for engine in compiled.engines})
    made = Again.of(stages, as_stage(kept)).finished(assembled)
    return evolve(made, healed=compiled.healed, kernels=compiled.kernels)


def captured_in_torch(compiled: Compiled, reason: Rejection) -> Compiled:
    """Return the program before `decompose`, over the same parameters, in one segment of PyTorch.

    Raises:
        ValueError: there is no such program, or float64 is computed in float32.
    """
    made, source = compiled.program, compiled.program.source
    if source is None or made.settings.truncate_double:
        raise ValueError("there is no captured program that computes in the same dtypes")
    program = evolve(source, parameters=made.parameters, examples=made.examples, source=source, origin=made.origin)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    verdicts = (Verdict(n.name, qualified_name(n.target), None, (reason,), source_line(n)) for n in calls)
    validated = Validated(program, FrozenDict({verdict.node: verdict for verdict in verdicts}))
    operators = [node.name for node in calls if is_operator(node)]
    return Compiled(assemble(validated, [("torch", operators)], {}), (), (), RefitMap(), FrozenDict())


@frozen
class Kept:
    """A stage in place of ``build`` that takes the engines of another program, by their names."""

    engines: Mapping[str, Engine] = field(repr=False)
    name: str = "kept"

    def __call__(self, converted: Converted) -> Built:
        """Return the engines of the networks."""
        c = converted
        engines = tuple(self.engines[network.name] for network in c.networks)
        return Built(c.partitioned, c.networks, engines, c.recipes, c.literals, c.computed)
