"""Recipes: how a constant is made from a model's parameters, so that engines can be refitted exactly.

A converter does no arithmetic on weights. ``decompose`` folds what depends on parameters alone and keeps it as a
recipe: a short list of ATen calls. Evaluating a recipe on other parameters gives the other constant: absolute, never
incremental.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import field, frozen


@frozen
class Ref:
    """A reference to a parameter or to an earlier step, by name."""

    name: str

    def __str__(self) -> str:
        return f"%{self.name}"

    __repr__ = __str__


@frozen
class Step:
    """One ATen call: ``target`` is its qualified name (``aten.permute.default``)."""

    name: str
    target: str
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        given = [*map(str, self.args), *(f"{k}={v}" for k, v in self.kwargs)]
        return f"%{self.name} = {self.target}({', '.join(given)})"


@frozen
class Recipe:
    """A constant called ``name``: the value of ``result`` after ``steps`` (none: the parameter itself)."""

    name: str
    result: Ref
    steps: tuple[Step, ...] = ()
    dtype: torch.dtype | None = field(default=None)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters it reads, in order of first use."""
        made = {step.name for step in self.steps}
        refs = [r for step in self.steps for r in _refs((step.args, tuple(v for _, v in step.kwargs)))] + [
            self.result.name
        ]
        return tuple(dict.fromkeys(r for r in refs if r not in made))

    def evaluate(self, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The constant for these parameters, on the CPU and contiguous; the parameters are not changed."""
        values: dict[str, Any] = {}

        def value(ref: Ref) -> Any:
            return values[ref.name] if ref.name in values else parameters[ref.name].detach().cpu()

        with torch.no_grad():
            for step in self.steps:
                kwargs = {k: _resolve(v, value) for k, v in step.kwargs}
                values[step.name] = target_of(step.target)(*_resolve(step.args, value), **kwargs)
            result: torch.Tensor = value(self.result)
            return result.contiguous() if result.layout == torch.strided else result

    def __str__(self) -> str:
        return "; ".join([*map(str, self.steps), str(self.result)])


def held(value: torch.Tensor) -> torch.Tensor:
    """A weight in the dtype that networks have for it: float32 for float64 (``truncate_double``), else its own."""
    return value.float() if value.dtype == torch.float64 else value


def identity(name: str) -> Recipe:
    """The recipe of a parameter that is used as it is."""
    return Recipe(name, Ref(name))


def target_of(qualified: str) -> Callable[..., Any]:
    """The function with a qualified name such as ``aten.permute.default``."""
    if qualified == "operator.getitem":
        return operator.getitem
    return operator.attrgetter(qualified)(torch.ops)  # type: ignore[no-any-return]


def qualified_name(target: Any) -> str:
    """``aten.permute.default`` for an operator overload; ``operator.getitem``, ``torch.sym_min`` for functions."""
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(target)
    module = getattr(target, "__module__", "")
    module = "operator" if module == "_operator" else module
    return f"{module}.{getattr(target, '__name__', target)}"


def _resolve(value: Any, get: Callable[[Ref], Any]) -> Any:
    if isinstance(value, Ref):
        return get(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_resolve(v, get) for v in value)
    return value


def _refs(value: Any) -> list[str]:
    if isinstance(value, Ref):
        return [value.name]
    if isinstance(value, (tuple, list)):
        return [name for v in value for name in _refs(v)]
    return []
