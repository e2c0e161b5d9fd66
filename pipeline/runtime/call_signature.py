"""Arrange the arguments of a call as the program expects them.
As with the model, callers may pass any argument by keyword and omit arguments that have defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.aten.types import Spec
from pipeline.program import Program
from pipeline.records.parameter import Parameter


def arrange_arguments(
    program: Program, positional: Spec, keywords: Spec, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[tuple[object, ...], dict[str, object]] | None:
    """Return a call's arguments as (args, kwargs) in the form used at compile time; None if they do not fit.

    An omitted argument has the default of the model's ``forward``. An argument that was omitted at compile time must
    equal that default.

    Args:
        program: the program; if it has no signature of ``forward``, its inputs' names are the parameters' names.
        positional, keywords: the pytree structures of its positional and keyword inputs.

    Raises:
        TypeError: an argument is passed twice, or differs from the value that is compiled into the program.
    """
    parameters: Sequence[Parameter] = program.signature
    if not parameters and positional.num_leaves == positional.num_children:  # no input is a container
        parameters = [Parameter(port.name) for port in program.inputs[: positional.num_children]]
    order, count = [p.name for p in parameters if p.positional], positional.num_children
    named = tuple(keywords.context or ())
    if len(order) < max(count, len(args)):
        return None
    given = dict(zip(order, args, strict=False))
    if twice := given.keys() & kwargs.keys():
        raise TypeError(f"input {min(twice)} is given twice, by position and by keyword")
    given.update(kwargs)
    known, compiled = {p.name: p for p in parameters}, (*order[:count], *named)
    for name in given.keys() - {*compiled}:
        if name not in known:
            return None
        has_default, default = known[name].has_default, known[name].default
        if not has_default or not is_same_value(given[name], default):
            left = f"for its default, {default!r}" if has_default else "without it"
            raise TypeError(
                f"input {name} cannot be passed, as the program was compiled {left}: compile the model with this input"
            )
    for name in compiled:
        if name not in given:
            if name not in known or not known[name].has_default:
                return None
            given[name] = known[name].default
            _check_omitted_argument(known[name], compiled, program)
    return tuple(given[name] for name in order[:count]), {name: given[name] for name in named}


def _check_omitted_argument(parameter: Parameter, input_names: Sequence[str], program: Program) -> None:
    """Raise a TypeError if an omitted parameter's default is not the compiled value. ``input_names``: of all inputs."""
    specs = [spec for part in program.in_spec.children() for spec in part.children()]
    place, default, what = input_names.index(parameter.name), parameter.default, "a value that each call passes"
    if specs[place].num_leaves == 1 and not specs[place].num_children:
        port = program.inputs[sum(spec.num_leaves for spec in specs[:place])]
        if port.kind == "symint" and type(default) is int:
            return
        if port.kind == "constant":
            if is_same_value(default, port.value):
                return
            what = repr(port.value)
    raise TypeError(
        f"input {parameter.name} is missing, and its default is {default!r}, but the program was compiled for {what}: "
        "pass this input"
    )


def is_same_value(value: object, other: object) -> bool:
    """Return whether two plain values are equal and of the same type; NaN counts as equal to NaN."""
    return type(value) is type(other) and bool(value == other or (value != value and other != other))
