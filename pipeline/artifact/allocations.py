"""Bound what a program from a file allocates for constants: what its recipes compute, and tensors that its graphs fill.

A few bytes of text can ask for any size. So a file says how many bytes its largest such tensor has, `inspect` prints
it, and a program that asks for more is not loaded. Recipes run on fake tensors, which have sizes and no memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_iter

from pipeline.aten.calls import callee
from pipeline.aten.traits import Does, does
from pipeline.aten.types import Argument, Target
from pipeline.recipes import CPU, Recipe, Ref, target_of

LITTLE: Final = 64 << 20
"""So many bytes need not be said."""

FACTOR: Final = 4
"""Recipes may widen parameters, and so many times their bytes need not be said either."""

_SIZES: Final = frozenset(("size", "n", "m", "steps", "row", "col", "end"))
_SAME: Final = (Does.COPIES, Does.DECLARES, Does.RESHAPES, Does.SQUEEZES, Does.TRANSPOSES, Does.REORDERS)


def most_of(parameters: Iterable[int], said: int) -> int:
    """The most bytes of a tensor that a program may compute as a constant, by the bytes of its parameters and what its
    file says."""
    return max(LITTLE, FACTOR * sum(parameters), said)


def filled(target: Target, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]) -> int:
    """At least so many bytes has the tensor that a call makes of numbers alone; 0 for another call, or for sizes that
    vary."""
    if does(target) is not Does.FILLS:
        return 0
    names = [argument.name for argument in target._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    found = [value for name in _SIZES & given.keys() for value in tree_iter(given[name])]
    counts = [abs(value) for value in found if isinstance(value, (int, float))]
    if len(counts) < len(found) or not counts:
        return 0
    dtype = given.get("dtype")
    step = abs(given.get("step") or 1)
    return int(math.prod(counts) / step) * (dtype.itemsize if isinstance(dtype, torch.dtype) else 4)


def largest(recipes: Iterable[Recipe], parameters: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> int:
    """The bytes of the largest tensor that computing recipes makes, by the dtypes and sizes of the parameters."""
    known: dict[object, int] = {}
    for recipe in recipes:
        if all(does(target_of(step.target)) in _SAME for step in recipe.steps):
            continue
        places = {name: i for i, name in enumerate((*recipe.parameters, *(step.name for step in recipe.steps)))}
        given = [parameters.get(name) for name in recipe.parameters]
        steps = [(s.target, _normal((s.args, s.kwargs), places)) for s in recipe.steps]
        if (key := repr((given, steps))) not in known:  # equal layers have equal recipes
            known[key] = max(_sizes(recipe, parameters), default=0)
    return max(known.values(), default=0)


def _normal(value: object, places: Mapping[str, int]) -> object:
    if isinstance(value, Ref):
        return f"%{places.get(value.name)}"
    return [_normal(part, places) for part in value] if isinstance(value, (tuple, list)) else repr(value)


def _sizes(recipe: Recipe, parameters: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> Iterator[int]:
    """The bytes of each tensor that a recipe computes. What depends on data is unknown; its literal sizes count."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        values: dict[str, Argument] = {
            name: torch.empty(shape, dtype=dtype)
            for name, (dtype, shape) in parameters.items()
            if name in recipe.parameters
        }
        for step in recipe.steps:
            unknown = False

            def value(each: object) -> Argument:
                nonlocal unknown
                if isinstance(each, Ref):
                    unknown = unknown or values.get(each.name) is None
                    return values.get(each.name)
                if isinstance(each, (tuple, list)):
                    return type(each)(value(part) for part in each)
                return torch.device(CPU) if isinstance(each, str) and each == CPU else each

            args, kwargs = value(step.args), {name: value(each) for name, each in step.kwargs}
            values[step.name] = None
            if not unknown:
                values[step.name] = _called(target_of(step.target), args, kwargs)
            if values[step.name] is None:
                yield 8 * math.prod(abs(each) for each in tree_iter((args, kwargs)) if type(each) is int and each)
            yield from (t.nbytes for t in tree_iter(values[step.name]) if isinstance(t, torch.Tensor))


def _called(target: Callable[..., Argument], args: tuple[Argument, ...], kwargs: Mapping[str, Argument]) -> Argument:
    """The fake result of a call; None if it depends on data."""
    try:
        return callee(target)(*args, **kwargs)
    except Exception:  # whatever is wrong with it, evaluating it says so
        return None
