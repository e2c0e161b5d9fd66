"""Limit the memory of the constants that a saved program computes when it is loaded or called.
These are computed from parameters (recipes), or created by ``full``, ``arange`` and the like.

A few bytes of a malicious file can request a tensor of any size. So a file declares its largest constant, `inspect`
prints it, and a program that requests a larger one is not loaded. Recipes run on fake tensors to find their results'
sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from pipeline.aten.calls import safe_function
from pipeline.aten.traits import Kind, op_kind
from pipeline.aten.types import Argument, Target, aten
from pipeline.recipes import CPU, Recipe, Ref, find_target, ref_names

ALWAYS_ALLOWED: Final = 64 << 20
"""The maximum bytes of a computed constant that a file need not declare."""
FACTOR: Final = 4
"""A constant of up to this multiple of the parameters' bytes need not be declared either: recipes may widen dtypes."""
WIDEST: Final = 16
"""The bytes of an element of the widest dtype, complex128."""

_SIZES: Final = frozenset(("size", "n", "m", "steps", "row", "col", "end"))
_AT_MOST_ALL: Final = (aten.cat.default, aten.stack.default, aten.slice.Tensor, aten.select.int, aten.gather.default)
"""Operators whose result has at most as many elements as all their arguments together."""
_REPEATS: Final = (aten.expand.default, aten.repeat.default)
_RANGES: Final = (aten.arange.default, aten.arange.start)
_SAME: Final = (Kind.COPIES, Kind.DECLARES, Kind.RESHAPES, Kind.SQUEEZES, Kind.TRANSPOSES, Kind.REORDERS)


def allowed_constant_bytes(parameter_sizes: Iterable[int], declared_bytes: int) -> int:
    """Return the maximum bytes of a constant that a saved program may create. ``parameter_sizes``: the bytes of each of
    the program's parameters; ``declared_bytes``: the bytes of the largest constant, as the program's file states."""
    return max(ALWAYS_ALLOWED, FACTOR * sum(parameter_sizes), declared_bytes)


def min_bytes_to_fill(target: Target, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]) -> int:
    """Return the least bytes that calling ``target`` allocates; 0 unless it is ``full``, ``arange`` … of fixed size."""
    if op_kind(target) is not Kind.FILLS:
        return 0
    names = [argument.name for argument in target._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    found = [value for name in _SIZES & given.keys() for value in tree_leaves(given[name])]
    counts = [abs(value) for value in found if isinstance(value, (int, float))]
    if len(counts) < len(found) or not counts:
        return 0
    dtype = given.get("dtype")
    step = abs(given.get("step") or 1)
    return int(math.prod(counts) / step) * (dtype.itemsize if isinstance(dtype, torch.dtype) else 4)


def largest_nbytes(recipes: Iterable[Recipe], parameters: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> int:
    """Return the bytes of the largest tensor that any step of these recipes creates. A recipe lists the steps that
    compute a constant from ``parameters``, which are given by name as dtype and sizes."""
    known: dict[object, int] = {}
    for recipe in recipes:
        if all(op_kind(find_target(step.target)) in _SAME for step in recipe.steps):
            continue
        names = (*recipe.parameters, *(step.name for step in recipe.steps))
        places = {Ref(name): Ref(str(i)) for i, name in enumerate(names)}
        given = [parameters.get(name) for name in recipe.parameters]
        steps = [(s.target, s.args, s.kwargs) for s in recipe.steps]
        key = repr((given, tree_map(partial(_rename_refs, places), steps)))
        if key not in known:  # equal layers have equal recipes
            known[key] = max(_computed_nbytes(recipe, parameters), default=0)
    return max(known.values(), default=0)


def max_elements(recipe: Recipe, parameters: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> int | None:
    """Return an upper bound for the elements of each tensor that a recipe creates; None if an operator has no simple
    bound. Fake tensors are exact, but their first use imports torch's compiler, which takes about a second."""
    counts = {name: math.prod(parameters[name][1]) for name in recipe.parameters if name in parameters}
    for step in recipe.steps:
        target, read = find_target(step.target), ref_names((step.args, tuple(value for _, value in step.kwargs)))
        given = [counts[name] for name in read if name in counts]
        numbers = math.prod(1 + abs(n) for n in tree_leaves((step.args, dict(step.kwargs))) if type(n) is int)
        kind = op_kind(target)
        if len(given) < len(read) or (target in _RANGES and any(isinstance(n, float) for n in tree_leaves(step.args))):
            return None
        if kind in (*_SAME, Kind.CASTS) or target in _AT_MOST_ALL:
            counts[step.name] = sum(given)
        elif target in (*_REPEATS, *_RANGES, aten.full.default):
            counts[step.name] = max(1, sum(given)) * numbers
        elif kind is Kind.POINTWISE:
            counts[step.name] = math.prod(given)
        elif target is aten.embedding.default and read[0] in parameters:
            counts[step.name] = math.prod(given[1:]) * parameters[read[0]][1][-1]
        else:
            return None
    return max(counts.values(), default=0)


def _rename_refs(new_refs: Mapping[Ref, Ref], value: object) -> object:
    """Return ``new_refs[value]`` if ``value`` is a `Ref` (to a value by name) among the keys; else return ``value``."""
    return new_refs.get(value, value) if isinstance(value, Ref) else value


def _computed_nbytes(recipe: Recipe, parameters: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> Iterator[int]:
    """Yield the bytes of each tensor that the steps of a recipe create. If a shape depends on data, yield an estimate
    instead: 8 bytes times the product of the ints among the step's arguments."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        values: dict[str, Argument] = {
            name: torch.empty(shape, dtype=dtype)
            for name, (dtype, shape) in parameters.items()
            if name in recipe.parameters
        }

        def value(each: object) -> Argument:
            if isinstance(each, Ref):
                return values.get(each.name)
            return torch.device(CPU) if isinstance(each, str) and each == CPU else each

        for step in recipe.steps:
            args, kwargs = tree_map(value, (step.args, dict(step.kwargs)))
            read = ref_names((step.args, tuple(each for _, each in step.kwargs)))
            is_known = all(values.get(name) is not None for name in read)
            found = values[step.name] = _fake_result(find_target(step.target), args, kwargs) if is_known else None
            if found is None:
                yield 8 * math.prod(abs(each) for each in tree_leaves((args, kwargs)) if type(each) is int and each)
            yield from (t.nbytes for t in tree_leaves(found) if isinstance(t, torch.Tensor))


def _fake_result(
    target: Callable[..., Argument], args: tuple[Argument, ...], kwargs: Mapping[str, Argument]
) -> Argument:
    """Return the result of a call on fake tensors; None if its shape is data-dependent."""
    try:
        return safe_function(target)(*args, **kwargs)
    except Exception:  # an invalid call raises its error when the recipe is evaluated
        return None
