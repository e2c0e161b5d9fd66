"""refit_map: ``Built`` → ``Compiled``. Map each engine weight to its recipe: how parameters compute it."""

from __future__ import annotations

from pipeline.compiled import Compiled, RefitMap
from pipeline.compose.pipelines import stage
from pipeline.frozen import FrozenDict
from pipeline.program import Built


@stage
def refit_map(built: Built) -> Compiled:
    """Return the compiled program with its `RefitMap`: for each engine weight the `Recipe` that computes it from the
    model's parameters, or the reason why it cannot be refitted."""
    used = {weight.name for network in built.networks for weight in network.weights}
    recipes = {name: recipe for name, recipe in built.recipes.items() if name in used}
    return Compiled(
        partitioned=built.partitioned,
        networks=built.networks,
        engines=built.engines,
        refit_map=RefitMap(FrozenDict(recipes), built.computed),
        literals=built.literals,
    )
