"""with_lora: a compiled program with low-rank adapters, or without those that it has."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

from attrs import evolve

from pipeline.artifact.adapters import Adapter, adapted, adapters_of, bare, factors, is_adapter, over
from pipeline.artifact.refit import missing, remade
from pipeline.artifact.tensors import tensors_of
from pipeline.compiled import Compiled, RefitMap, StrPath
from pipeline.errors import RefitError
from pipeline.frozen import FrozenDict
from pipeline.program import Program
from pipeline.recipes import Recipe


def with_lora(
    compiled: Compiled,
    adapters: Mapping[str, object] | StrPath,
    scale: float = 1.0,
    fan_in_fan_out: bool | None = None,
) -> Compiled:
    """Return a compiled program with these adapters in place of those that it has: see `Compiled.with_lora`."""
    if isinstance(adapters, str | os.PathLike):
        adapters = tensors_of(Path(adapters))
    if not isinstance(adapters, Mapping):
        due = "PEFT's state dict or its file, or a mapping from parameter to (A, B)"
        raise TypeError(f"adapters are {due}, not a {type(adapters).__name__}")
    if not isinstance(scale, int | float) or not math.isfinite(scale):
        raise ValueError(f"scale is a finite number, such as lora_alpha / r, not {scale!r}")
    program = compiled.program
    base = {name: tensor for name, tensor in program.parameters.items() if not is_adapter(name)}
    found = adapters_of(adapters, base, fan_in_fan_out)
    if wrong := missing({}, {}, program) | _tied(found, program):
        raise RefitError(wrong, "adapters add to the weights that were compiled")
    return _remade(compiled, found, scale)


def _tied(adapters: list[Adapter], program: Program) -> dict[str, str]:
    """The parameters among several names of one tensor: an adapter's name does not say which of them it means."""
    tensors = program.parameters
    others = {a.parameter: [n for n, t in tensors.items() if t is tensors[a.parameter]] for a in adapters}
    return {
        name: f"it is one tensor with {', '.join(other for other in names if other != name)}"
        for name, names in others.items()
        if len(names) > 1
    }


def _remade(compiled: Compiled, adapters: list[Adapter], scale: float) -> Compiled:
    program, known = compiled.program, {each.parameter: each for each in adapters}
    base = {name: tensor for name, tensor in program.parameters.items() if not is_adapter(name)}
    dtypes = {name: tensor.dtype for name, tensor in base.items()}

    def change(recipe: Recipe) -> Recipe:
        return adapted(bare(recipe), known, scale, dtypes)

    recipes = RefitMap(over(compiled.refit_map, change), compiled.refit_map.computed)
    before = {name for name, recipe in compiled.refit_map.items() if any(map(is_adapter, recipe.parameters))}
    after = {name for name, recipe in recipes.items() if any(map(is_adapter, recipe.parameters))}
    parameters = FrozenDict({**base, **factors(adapters)})
    new = evolve(program, parameters=parameters, constants=over(program.constants, change))
    return remade(compiled, new, recipes, before | after)
