"""Inputs that ``forward`` takes as ``*args`` or ``**kwargs``: torch.export knows their dims by that parameter, and
counts those of ``**kwargs`` twice."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import torch

from pipeline.aten.types import Argument, Spec
from pipeline.inputs import Input


def in_one(model: torch.nn.Module, inputs: Mapping[str, Argument], given: Spec) -> Spec:
    """``dynamic_shapes`` by position: the entries of inputs that ``forward`` takes as ``*args`` become one entry.

    inputs: by the names of parameters.

    Raises:
        ValueError: there are fewer entries than inputs, or more.
    """
    parameters = inspect.signature(model.forward).parameters.values()
    name = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL and p.name in inputs), None)
    if name is None or not isinstance(given, list | tuple):
        return given
    first, count = list(inputs).index(name), len(inputs[name])
    whole = first < len(given) and isinstance(given[first], list | tuple | None)
    if not given or (len(given) == len(inputs) and (whole if count != 1 else _is_of_one(given[first], *inputs[name]))):
        return given
    if len(given) != len(inputs) - 1 + count:
        each = [f"{name}[{i}]" for i in range(count)]
        names = ", ".join(part for other in inputs for part in (each if other == name else [other]))
        raise ValueError(f"dynamic_shapes has {len(given)} entries for {len(inputs) - 1 + count} inputs ({names})")
    return (*given[:first], tuple(given[first : first + count]), *given[first + count :])


def _is_of_one(spec: object, value: object) -> bool:
    """Return whether an entry belongs to a tuple with this input, and is not the input's own tuple of dims."""
    if not isinstance(spec, list | tuple) or len(spec) != 1:
        return False
    return not isinstance(value, torch.Tensor | Input) or isinstance(spec[0], Mapping | list | tuple | None)


def together(model: torch.nn.Module, given: Spec) -> Spec:
    """``dynamic_shapes`` by the names of ``forward``'s parameters: ``{"other": …}`` is in ``{"kwargs": {"other": …}}``
    if ``forward`` takes it as ``**kwargs``."""
    parameters = inspect.signature(model.forward).parameters
    name = next((n for n, p in parameters.items() if p.kind is p.VAR_KEYWORD), None)
    others = {n: spec for n, spec in given.items() if n not in parameters} if isinstance(given, dict) else {}
    if name is None or not others:
        return given
    own = {n: spec for n, spec in given.items() if n in parameters}
    return {**own, name: {**(own.get(name) or {}), **others}}


def once(own: Callable[..., Argument]) -> Callable[..., Argument]:
    """Wrap torch.export's `make_constraints`, which gets inputs of ``**kwargs`` under two names."""

    def make_constraints(
        mode: object, module: object, inputs: Mapping[str, Argument], shapes: Spec, *args: object, **kwargs: object
    ) -> Argument:
        twice = [name for name, value in inputs.items() if _is_of(value, inputs)]
        if isinstance(shapes, dict):
            inner = [(shapes[name] or {}).items() for name in twice if name in shapes]
            shapes = {n: s for n, s in shapes.items() if n not in twice} | {n: s for rows in inner for n, s in rows}
        inputs = {name: value for name, value in inputs.items() if name not in twice}
        return own(mode, module, inputs, shapes, *args, **kwargs)

    return make_constraints


def _is_of(value: object, inputs: Mapping[str, object]) -> bool:
    """Return whether a value holds the inputs."""
    return type(value) is dict and bool(value) and all(n in inputs and inputs[n] is v for n, v in value.items())
