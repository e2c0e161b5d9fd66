"""unbuilt: ``Converted`` → ``Built``. Skip the build, for programs that run only on the reference executor."""

from __future__ import annotations

from pipeline.compose.pipelines import stage
from pipeline.program import Built, Converted


@stage
def unbuilt(converted: Converted) -> Built:
    """Return a record without engines; it replaces ``build`` for programs that run only on the CPU reference."""
    c = converted
    return Built(c.partitioned, c.networks, (), c.recipes, c.literals, c.computed)
