"""unbuilt: ``Converted`` → ``Built``. Skip the build, for programs that only the reference executor runs."""

from __future__ import annotations

from pipeline.compose.pipelines import stage
from pipeline.program import Built, Converted


@stage
def unbuilt(converted: Converted) -> Built:
    """Return a record without engines, in place of ``build``: the program runs on the reference executor only."""
    c = converted
    return Built(c.partitioned, c.networks, (), c.recipes, c.literals, c.computed)
