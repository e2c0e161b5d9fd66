"""Turn engines of a program into segments of PyTorch; other engines stay as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from attrs import evolve, field, frozen

from pipeline.compiled import Compiled
from pipeline.compose.pipelines import StageLike, as_stage
from pipeline.compose.stage_signature import AnyStage
from pipeline.converters.declare import Rejection
from pipeline.network.engine import Engine
from pipeline.partitioning.assemble import Group, assemble
from pipeline.program import Built, Converted, Validated, is_operator
from pipeline.verification.recompile import Again
from pipeline.verification.split import refused


def in_torch(compiled: Compiled, reasons: Mapping[str, Rejection], stages: Sequence[AnyStage]) -> Compiled:
    """Return a program in which these engines are segments of PyTorch, each for its reason. Other engines stay."""
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
    made = Again.of(stages, as_stage(Kept.of(compiled))).finished(assemble(validated, groups, {}))
    return evolve(made, healed=compiled.healed, kernels=compiled.kernels)


@frozen
class Kept:
    """A stage in place of ``build`` that takes the engines of another program, by their names."""

    engines: Mapping[str, Engine] = field(repr=False)
    name: str = "kept"

    @classmethod
    def of(cls, compiled: Compiled) -> StageLike:
        """Return the stage with a program's engines."""
        return cls({engine.name: engine for engine in compiled.engines})

    def __call__(self, converted: Converted) -> Built:
        """Return the engines of the networks."""
        c = converted
        engines = tuple(self.engines[network.name] for network in c.networks)
        return Built(c.partitioned, c.networks, engines, c.recipes, c.literals, c.computed)
