"""The protocol of stages, the record types in their annotations, and whether one type is accepted as another.

A union is accepted if each of its members is. Types that cannot be checked at run time (Any, a type variable, a
protocol that is not runtime-checkable) are accepted everywhere.
"""

import inspect
import re
from collections.abc import Callable
from types import FunctionType, MethodType, NoneType, UnionType
from typing import Any, Protocol, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

Takes = TypeVar("Takes", contravariant=True)
Gives = TypeVar("Gives", covariant=True)
RecordType: TypeAlias = Any


class Stage(Protocol[Takes, Gives]):
    """The protocol of stages: a pure function from one record (such as `Program`) to another, its name, and types."""

    @property
    def name(self) -> str:
        """Return the name by which a pipeline finds the stage."""

    @property
    def takes(self) -> RecordType:
        """Return the record type of the stage's input."""

    @property
    def gives(self) -> RecordType:
        """Return the record type of the stage's output."""

    def __call__(self, record: Takes, /) -> Gives:
        """Return the stage's output for this record."""


AnyStage: TypeAlias = Stage[Any, Any]


def stage_name(function: object) -> str:
    """Return the stage name of a function or record: its `name` or `__name__`, or its class in snake case."""
    for attribute in ("name", "__name__"):
        name = getattr(function, attribute, None)
        if isinstance(name, str) and name:
            return name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(function).__name__).lower()


def is_stage(value: object) -> bool:
    """Return whether a value has the attributes of a stage, so that it needs no `FunctionStage` around it."""
    return all(inspect.getattr_static(value, part, None) is not None for part in ("name", "takes", "gives"))


def innermost_function(step: AnyStage) -> object:
    """Return the function or the record that a stage calls, inside of all `FunctionStage` around it."""
    inner: object = step
    while is_stage(inner) and (function := getattr(inner, "function", None)) is not None:
        inner = function
    return inner


def record_types(function: Callable[..., object], name: str) -> tuple[object, object]:
    """Return the record types that the annotations of a stage's function declare for its input and output."""
    try:
        hints = get_type_hints(function if isinstance(function, FunctionType | MethodType) else type(function).__call__)
    except NameError as error:
        why = f"its annotation {error.name!r} is not defined in the module of the function"
        instead = "define or import it at the module's top level (not under TYPE_CHECKING)"
        raise TypeError(f"stage {name!r}: {why}; {instead}") from error
    if hints["return"] is NoneType:
        raise TypeError(f"stage {name!r} is annotated to return None: annotate the type of the record that it returns")
    return hints[next(iter(inspect.signature(function).parameters))], hints["return"]


def check_signature(function: Callable[..., object], name: str) -> None:
    """Raise a `TypeError` unless a stage's function can be called with one record, and its types are annotated."""
    if not callable(function):
        raise TypeError(f"{function!r} is not a stage: expected a function from one record, say Program, to another")
    signature = inspect.signature(function)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in positional:
        raise TypeError(f"stage {name!r} needs a positional parameter for its record; its signature is {signature}")
    more = [p.name for p in parameters[1:] if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if more:
        why = f"its parameter {more[0]!r} has no default: give it one, or make it a field of a stage class"
        raise TypeError(f"stage {name!r} is called with one record, but {why}")
    missing = [f"the type of its parameter {parameters[0].name!r}"] * (parameters[0].annotation is signature.empty)
    missing += ["its return type (->)"] * (signature.return_annotation is signature.empty)
    if missing:
        raise TypeError(f"stage {name!r} does not declare {' or '.join(missing)}: annotate both with record types")


def accepts_type(wanted_type: object, given_type: object) -> bool:
    """Return whether every record of type `given_type` may be passed to a parameter of type `wanted_type`."""

    def fits(one: object, other: object) -> bool:
        given, taken = _checkable_class(one), _checkable_class(other)
        return given is None or taken is None or issubclass(given, taken)

    return all(any(fits(one, other) for other in _union_members(wanted_type)) for one in _union_members(given_type))


def is_instance(record: object, annotation: object) -> bool:
    """Return whether the record is of the annotated type."""
    classes = [_checkable_class(member) for member in _union_members(annotation)]
    return any(known is None or isinstance(record, known) for known in classes)


def type_name(annotation: object) -> str:
    """Return the name of a type annotation for errors and reprs."""
    members = ((m, getattr(m, "__name__", m) if get_origin(m) is None else m) for m in _union_members(annotation))
    return " | ".join("None" if member is NoneType else str(name) for member, name in members)


def _union_members(annotation: object) -> tuple[object, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _checkable_class(member: object) -> type | None:
    """Return the class for `isinstance` checks of an annotation; None for a type that cannot be checked."""
    known = get_origin(member) or member
    unchecked = getattr(known, "_is_protocol", False) and not getattr(known, "_is_runtime_protocol", False)
    return known if isinstance(known, type) and known is not Any and not unchecked else None
