"""Add low-rank adapters (LoRA) to weights: a weight W becomes W + scale * B @ A, and W again once they are removed.

The parameter stays unchanged. Two parameters ``NAME.lora_A`` and ``NAME.lora_B`` are added, and every constant computed
from the parameter is computed from the sum instead. So removing adapters restores the program exactly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from attrs import evolve, field, frozen
from torch.utils._pytree import tree_map

from pipeline.aten.types import Argument
from pipeline.errors import RefitError
from pipeline.recipes import Recipe, Ref, Step
from pipeline.records.wording import kind_of

A, B = ".lora_A", ".lora_B"
SUM = "lora:"
"""The prefix of the names of the calls in a recipe that add an adapter; the last, the sum, has the parameter's name."""
_KEY = re.compile(
    r"(?:base_model\.model\.)?(?P<layer>.+)\.lora_(?:embedding_)?(?P<side>[AB])(?:\.(?!weight$)\w+)?(?:\.weight)?"
)


@frozen
class Adapter:
    """The LoRA factors of a parameter: ``a`` [rank, in, …] and ``b`` [out, rank, …]. ``transposed``: the parameter's
    shape is [in, out], as in embeddings and GPT-2's ``Conv1D``."""

    parameter: str
    a: torch.Tensor = field(repr=False)
    b: torch.Tensor = field(repr=False)
    transposed: bool = False


def is_adapter_factor(parameter_name: str) -> bool:
    """Return whether a parameter is a factor of an adapter, not a parameter of the model."""
    return parameter_name.endswith((A, B))


def read_adapters(
    factors_by_name: Mapping[str, object], parameters: Mapping[str, torch.Tensor], fan_in_fan_out: bool | None
) -> list[Adapter]:
    """Read adapters from PEFT's state dict, or from a mapping from parameter name to (A, B). A `RefitError` names each
    key that does not fit a parameter, with the reason. ``fan_in_fan_out``: PEFT's setting, True if weights have the
    shape [in, out]; it matters only for square weights, whose shape does not tell."""
    pairs, wrong = _factor_pairs_and_errors(factors_by_name, parameters)
    found = {name: _adapter_or_mismatch(name, *pair, parameters[name], fan_in_fan_out) for name, pair in pairs.items()}
    wrong |= {name: reason for name, reason in found.items() if isinstance(reason, str)}
    if wrong:
        raise RefitError(wrong, "pass PEFT's state dict, whose keys have lora_A or lora_B, or {parameter: (A, B)}")
    return [adapter for adapter in found.values() if isinstance(adapter, Adapter)]


def _factor_pairs_and_errors(
    factors_by_name: Mapping[str, object], parameters: Mapping[str, torch.Tensor]
) -> tuple[dict[str, tuple[torch.Tensor, torch.Tensor]], dict[str, str]]:
    """Return the factors (A, B) by parameter name; and the reason for each key that fits no parameter, by key."""
    sides: dict[str, dict[str, torch.Tensor]] = {}
    wrong: dict[str, str] = {}
    for key, value in factors_by_name.items():
        match = _KEY.fullmatch(str(key))
        if isinstance(value, torch.Tensor) and match is None:
            wrong[key] = "expected only lora_A and lora_B; magnitudes, biases and modules_to_save are not supported"
            continue
        name = f"{match['layer']}.weight" if match else str(key)  # longer in a model that wraps the adapted model
        names = [name] if name in parameters else [known for known in parameters if known.endswith(f".{name}")]
        if len(names) != 1:
            reason = f"several parameters fit: {', '.join(names)}" if names else "the program has no such parameter"
            wrong[key] = reason
            continue
        given: dict[str, torch.Tensor] = {}
        if match is not None and isinstance(value, torch.Tensor):
            given = {match["side"]: value}
        elif isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(v, torch.Tensor) for v in value):
            given = dict(zip("AB", value, strict=True))
        else:
            wrong[key] = f"expected a pair of tensors (A, B), not {kind_of(value)}"
        known = sides.setdefault(names[0], {})
        if given.keys() & known.keys():
            wrong[key] = f"another key has factors of {names[0]}, too: pass one adapter"
        known.update(given)
    wrong |= {name: "one of lora_A and lora_B is missing" for name, side in sides.items() if len(side) == 1}
    return {name: (side["A"], side["B"]) for name, side in sides.items() if len(side) == 2}, wrong


def _adapter_or_mismatch(
    name: str, a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor, fan_in_fan_out: bool | None
) -> Adapter | str:
    """Return the adapter of the parameter ``name`` from its factors A and B, or why these do not fit ``weight``."""
    if a.is_meta or b.is_meta:
        return "its factors are on the meta device: they have no values"
    shapes = f"A is {list(a.shape)}, B is {list(b.shape)}, the weight is {list(weight.shape)}"
    if a.dim() < 2 or b.dim() < 2 or a.shape[0] != b.shape[1] or not weight.is_floating_point():
        return f"its factors do not fit: {shapes}"
    rows, columns = b.flatten(1).shape[0], a.flatten(1).shape[1]
    direct = weight.shape[0] == rows and weight.numel() == rows * columns
    transposed = weight.dim() == 2 and tuple(weight.shape) == (columns, rows)
    if not (direct or transposed) or b.flatten(1).shape[1] != a.shape[0]:
        return f"its factors do not fit: {shapes}"
    return Adapter(name, a.detach(), b.detach(), transposed and (bool(fan_in_fan_out) or not direct))


def named_factors(adapters: list[Adapter]) -> dict[str, torch.Tensor]:
    """Return copies of the adapters' factors by parameter name: ``fc.weight.lora_A``, ``fc.weight.lora_B``."""
    return {f"{each.parameter}{side}": v.clone() for each in adapters for side, v in ((A, each.a), (B, each.b))}


def adapt(recipe: Recipe, adapters: Mapping[str, Adapter], scale: float, dtypes: Mapping[str, torch.dtype]) -> Recipe:
    """Return a recipe (the steps that compute a constant from parameters) that reads W + scale * B @ A in place of each
    parameter W with an adapter. ``dtypes``: the dtype of each W, by parameter name."""
    read = [name for name in recipe.parameters if name in adapters]
    if not read:
        return recipe
    sums = (step for name in read for step in _steps_to_add_adapter(adapters[name], scale, dtypes[name]))
    renamed = _rename_parameters(recipe, {name: f"{SUM}{name}" for name in read})
    return evolve(renamed, steps=(*sums, *renamed.steps))


def _steps_to_add_adapter(adapter: Adapter, scale: float, dtype: torch.dtype) -> list[Step]:
    """Return the steps of a recipe that compute W + scale * B @ A as PEFT does: in the wider dtype of the parameter and
    the product, then rounded to ``dtype``."""
    name, steps = adapter.parameter, list[Step]()

    def step(what: str, target: str, *args: object) -> Ref:
        steps.append(Step(f"{SUM}{name}:{what}", f"aten.{target}", args))
        return Ref(steps[-1].name)

    a = step("a", "flatten.using_ints", Ref(f"{name}{A}"), 1)
    b = step("b", "flatten.using_ints", Ref(f"{name}{B}"), 1)
    delta = step("scaled", "mul.Tensor", step("product", "mm.default", b, a), float(scale))
    if adapter.transposed:
        delta = step("turned", "t.default", delta)
    delta = step("shaped", "reshape_as.default", delta, Ref(name))
    merged = step("sum", "add.Tensor", Ref(name), delta)
    return [*steps, Step(f"{SUM}{name}", "aten.to.dtype", (merged, dtype))]


def remove_adapters(recipe: Recipe) -> Recipe:
    """Return a recipe that reads each parameter W itself, where `adapt` made it read W + scale * B @ A."""
    steps = tuple(step for step in recipe.steps if not step.name.startswith(SUM))
    names = {name: name.removeprefix(SUM) for name in (s.name for s in recipe.steps) if name.startswith(SUM)}
    return recipe if len(steps) == len(recipe.steps) else _rename_parameters(evolve(recipe, steps=steps), names)


def _rename_parameters(recipe: Recipe, new_names: Mapping[str, str]) -> Recipe:
    """Return a recipe whose steps and result read each name in ``new_names`` under its new name."""

    def renamed(value: Argument) -> Argument:
        return Ref(new_names.get(value.name, value.name)) if isinstance(value, Ref) else value

    steps = (evolve(s, args=tree_map(renamed, s.args), kwargs=tree_map(renamed, s.kwargs)) for s in recipe.steps)
    return evolve(recipe, steps=tuple(steps), result=renamed(recipe.result))
