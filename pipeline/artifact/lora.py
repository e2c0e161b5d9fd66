"""with_lora: add low-rank adapters to a compiled program, or remove them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

from attrs import evolve

from pipeline.artifact.adapters import Adapter, adapted, adapters_of, bare, factors, is_adapter
from pipeline.artifact.refit import missing, remade, tied_names
from pipeline.artifact.tensors import tensors_of
from pipeline.compiled import Compiled, RefitMap, StrPath
from pipeline.errors import RefitError
from pipeline.frozen import FrozenDict
from pipeline.program import Program
from pipeline.recipes import Recipe
from pipeline.records.wording import kind_of


def with_lora(
    compiled: Compiled,
    adapters: Mapping[str, object] | StrPath,
    scale: float = 1.0,
    fan_in_fan_out: bool | None = None,
) -> Compiled:
    """Return a compiled program with these adapters in place of its own: see `Compiled.with_lora`."""
    if isinstance(adapters, str | os.PathLike):
        adapters = tensors_of(Path(adapters))
    if not isinstance(adapters, Mapping):
        due = "PEFT's state dict or its file, or a mapping from parameter to (A, B)"
        raise TypeError(f"adapters are {due}, not {kind_of(adapters)}")
    if not isinstance(scale, int | float) or not math.isfinite(scale):
        raise ValueError(f"scale is a finite number, such as lora_alpha / r, not {scale!r}")
    program = compiled.program
    base = {name: tensor for name, tensor in program.parameters.items() if not is_adapter(name)}
    found = adapters_of(adapters, base, fan_in_fan_out)
    if wrong := missing({}, {}, program) | _tied_parameters(found, program):
        raise RefitError(wrong, "adapters add to the compiled weights, each of which must be known by one name")
    known, dtypes = {each.parameter: each for each in found}, {name: tensor.dtype for name, tensor in base.items()}

    def changed(recipes: Mapping[str, Recipe]) -> FrozenDict[str, Recipe]:
        return FrozenDict({name: adapted(bare(recipe), known, scale, dtypes) for name, recipe in recipes.items()})

    recipes = RefitMap(changed(compiled.refit_map), compiled.refit_map.computed)
    both = (*compiled.refit_map.items(), *recipes.items())
    affected = {name for name, recipe in both if any(map(is_adapter, recipe.parameters))}
    parameters = FrozenDict({**base, **factors(found)})
    new = evolve(program, parameters=parameters, constants=changed(program.constants))
    return remade(compiled, new, recipes, affected)


def _tied_parameters(adapters: list[Adapter], program: Program) -> dict[str, str]:
    """Return the adapted parameters whose tensor has several names, since the adapter may mean any of them."""
    adapted = {adapter.parameter for adapter in adapters}
    return {
        name: f"it is one tensor with {', '.join(other for other in names if other != name)}"
        for names in tied_names(program.parameters)
        for name in names
        if name in adapted
    }
