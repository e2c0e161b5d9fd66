"""Low-rank adapters (LoRA) as recipes: a weight W becomes W + scale * B @ A, and W again when they are taken out.

A parameter keeps its value. Two more parameters, ``NAME.lora_A`` and ``NAME.lora_B``, stand beside it, and every
constant made from the parameter is made from the sum instead. So removing adapters restores the program exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import torch
from attrs import evolve, field, frozen

from pipeline.aten.types import Argument
from pipeline.errors import RefitError
from pipeline.frozen import FrozenDict
from pipeline.recipes import Recipe, Ref, Step

A, B = ".lora_A", ".lora_B"
SUM = "lora:"
"""Names of the steps that add an adapter begin so; the last, the sum, is this and the parameter's name."""
_KEY = re.compile(
    r"(?:base_model\.model\.)?(?P<layer>.+)\.lora_(?:embedding_)?(?P<side>[AB])(?:\.(?!weight$)\w+)?(?:\.weight)?"
)


@frozen
class Adapter:
    """The two factors for a parameter: ``a`` [rank, in, …], ``b`` [out, rank, …]; ``transposed`` where the parameter is
    [in, out], as that of an embedding or of GPT-2's ``Conv1D``."""

    parameter: str
    a: torch.Tensor = field(repr=False)
    b: torch.Tensor = field(repr=False)
    transposed: bool = False


def is_adapter(name: str) -> bool:
    """Whether a parameter is a factor of an adapter, and so not one of the model's own."""
    return name.endswith((A, B))


def adapters_of(
    given: Mapping[str, object], parameters: Mapping[str, torch.Tensor], fan_in_fan_out: bool | None
) -> list[Adapter]:
    """Read the adapters from PEFT's state dict, or from a mapping from parameter to (A, B).

    Raises:
        RefitError: some keys are not adapters of a parameter; the message names each, with the reason.
    """
    pairs, wrong = _pairs(given, parameters)
    found = {name: _fitted(name, *pair, parameters[name], fan_in_fan_out) for name, pair in pairs.items()}
    wrong |= {name: made for name, made in found.items() if isinstance(made, str)}
    if wrong:
        raise RefitError(wrong, "give lora_A and lora_B of weights, or {parameter: (A, B)}")
    return [made for made in found.values() if isinstance(made, Adapter)]


def _pairs(
    given: Mapping[str, object], parameters: Mapping[str, torch.Tensor]
) -> tuple[dict[str, tuple[torch.Tensor, torch.Tensor]], dict[str, str]]:
    """The factors of each parameter; and the keys that have no place, with the reason."""
    sides: dict[str, dict[str, torch.Tensor]] = {}
    wrong: dict[str, str] = {}
    for key, value in given.items():
        match = _KEY.fullmatch(str(key))
        if isinstance(value, torch.Tensor) and match is None:
            wrong[key] = "it is no lora_A or lora_B; magnitudes, biases and modules to save cannot be adapted"
            continue
        names = _named(f"{match['layer']}.weight" if match else str(key), parameters)
        if len(names) != 1:
            reason = f"it may mean {' or '.join(names)}" if names else "the compiled program has no such parameter"
            wrong[key] = reason
        elif match is not None and isinstance(value, torch.Tensor):
            sides.setdefault(names[0], {})[match["side"]] = value
        elif isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(v, torch.Tensor) for v in value):
            sides.setdefault(names[0], {}).update(A=value[0], B=value[1])
        else:
            wrong[key] = f"expected a pair of tensors (A, B), not a {type(value).__name__}"
    wrong |= {name: "only one of lora_A and lora_B is there" for name, side in sides.items() if len(side) == 1}
    return {name: (side["A"], side["B"]) for name, side in sides.items() if len(side) == 2}, wrong


def _named(name: str, parameters: Mapping[str, torch.Tensor]) -> list[str]:
    """The parameters that a name means: of that name, or whose end it is, as where a model wraps the one adapted."""
    return [name] if name in parameters else [known for known in parameters if known.endswith(f".{name}")]


def _fitted(
    name: str, a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor, fan_in_fan_out: bool | None
) -> Adapter | str:
    """The adapter, or why its factors do not fit the weight."""
    if a.is_meta or b.is_meta:
        return "its factors are on the meta device: they have no values"
    tied = f"A is {list(a.shape)}, B is {list(b.shape)}, the weight is {list(weight.shape)}"
    if a.dim() < 2 or b.dim() < 2 or a.shape[0] != b.shape[1] or not weight.is_floating_point():
        return f"its factors do not fit: {tied}"
    rows, columns = b.flatten(1).shape[0], a.flatten(1).shape[1]
    straight = weight.shape[0] == rows and weight.numel() == rows * columns
    turned = weight.dim() == 2 and tuple(weight.shape) == (columns, rows)
    if not (straight or turned) or b.flatten(1).shape[1] != a.shape[0]:
        return f"its factors do not fit: {tied}"
    return Adapter(name, a.detach(), b.detach(), turned and (bool(fan_in_fan_out) or not straight))


def factors(adapters: list[Adapter]) -> dict[str, torch.Tensor]:
    """The parameters that adapters add, as copies."""
    pairs = ((each.parameter, each) for each in adapters)
    return {f"{name}{side}": value.clone() for name, each in pairs for side, value in ((A, each.a), (B, each.b))}


def adapted(recipe: Recipe, adapters: Mapping[str, Adapter], scale: float, dtypes: Mapping[str, torch.dtype]) -> Recipe:
    """A recipe with the sum in place of each parameter that has an adapter."""
    read = [name for name in recipe.parameters if name in adapters]
    if not read:
        return recipe
    names = {name: f"{SUM}{name}" for name in read}
    sums = tuple(step for name in read for step in _steps(adapters[name], scale, dtypes[name]))
    return evolve(_renamed(recipe, names), steps=(*sums, *_renamed(recipe, names).steps))


def _steps(adapter: Adapter, scale: float, dtype: torch.dtype) -> Iterator[Step]:
    """W + scale * B @ A, as PEFT merges: in the wider of the factors' dtype and the weight's, rounded once."""
    name, last = adapter.parameter, Ref(f"{adapter.parameter}{B}")

    def step(what: str, target: str, *args: object, **kwargs: object) -> Step:
        return Step(f"{SUM}{name}:{what}", f"aten.{target}", args, tuple(kwargs.items()))

    first = step("a", "flatten.using_ints", Ref(f"{name}{A}"), 1)
    yield first
    yield (flat := step("b", "flatten.using_ints", last, 1))
    yield (made := step("product", "mm.default", Ref(flat.name), Ref(first.name)))
    yield (made := step("scaled", "mul.Tensor", Ref(made.name), float(scale)))
    if adapter.transposed:
        yield (made := step("turned", "t.default", Ref(made.name)))
    yield (made := step("shaped", "reshape_as.default", Ref(made.name), Ref(name)))
    yield (made := step("sum", "add.Tensor", Ref(name), Ref(made.name)))
    yield Step(f"{SUM}{name}", "aten.to.dtype", (Ref(made.name), dtype))


def bare(recipe: Recipe) -> Recipe:
    """A recipe without adapters."""
    steps = tuple(step for step in recipe.steps if not step.name.startswith(SUM))
    names = {name: name.removeprefix(SUM) for name in (s.name for s in recipe.steps) if name.startswith(SUM)}
    return recipe if len(steps) == len(recipe.steps) else _renamed(evolve(recipe, steps=steps), names)


def _renamed(recipe: Recipe, names: Mapping[str, str]) -> Recipe:
    """A recipe that reads other names."""
    steps = tuple(
        evolve(step, args=_read(step.args, names), kwargs=tuple((key, _read(v, names)) for key, v in step.kwargs))
        for step in recipe.steps
    )
    return evolve(recipe, steps=steps, result=_read(recipe.result, names))


def _read(value: Argument, names: Mapping[str, str]) -> Argument:
    if isinstance(value, Ref):
        return Ref(names.get(value.name, value.name))
    return type(value)(_read(v, names) for v in value) if isinstance(value, tuple | list) else value


def over(recipes: Mapping[str, Recipe], change: Callable[[Recipe], Recipe]) -> FrozenDict[str, Recipe]:
    """Recipes, each changed."""
    return FrozenDict({name: change(recipe) for name, recipe in recipes.items()})
