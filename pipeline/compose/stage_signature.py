"""The protocol of stages, and the record types that a stage function's annotations declare."""

import inspect
import re
from collections.abc import Callable
from types import FunctionType, MethodType, NoneType
from typing import Any, Protocol, TypeAlias, TypeVar, get_type_hints

Takes = TypeVar("Takes", contravariant=True)
Gives = TypeVar("Gives", covariant=True)


class Stage(Protocol[Takes, Gives]):
    """The protocol of stages: a name, the record types of input and output, and a pure call from one to the other."""

    @property
    def name(self) -> str:
        """Return the name that addresses the stage in a pipeline."""

    @property
    def takes(self) -> Any:
        """Return the record type that the stage takes."""

    @property
    def gives(self) -> Any:
        """Return the record type that the stage returns."""

    def __call__(self, record: Takes, /) -> Gives:
        """Return the stage's output for this record."""


AnyStage: TypeAlias = Stage[Any, Any]


def name_of(function: object) -> str:
    """Return the `name` or `__name__` of a function or record, or its class in snake case."""
    for attribute in ("name", "__name__"):
        name = getattr(function, attribute, None)
        if isinstance(name, str) and name:
            return name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(function).__name__).lower()


def record_types(function: Callable[..., object], name: str) -> tuple[object, object]:
    """Return the record types that the annotations of a stage's function declare for its input and output."""
    try:
        hints = get_type_hints(function if isinstance(function, FunctionType | MethodType) else type(function).__call__)
    except NameError as error:
        raise TypeError(
            f"stage {name!r}: the annotation {error.name!r} is not known in the module of the function; "
            "define or import it at the module's top level (not under TYPE_CHECKING)"
        ) from error
    if hints["return"] is NoneType:
        raise TypeError(f"stage {name!r} is annotated to return None; a stage returns a record")
    return hints[next(iter(inspect.signature(function).parameters))], hints["return"]


def check_signature(function: Callable[..., object], name: str) -> None:
    if not callable(function):
        raise TypeError(f"{function!r} is not a stage: a stage is a function of a record, which returns a record")
    signature = inspect.signature(function)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in positional:
        raise TypeError(f"stage {name!r} takes no record: its signature is {signature}")
    more = [p.name for p in parameters[1:] if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if more:
        raise TypeError(
            f"stage {name!r} takes one record; its parameter {more[0]!r} has no default: make options fields"
        )
    missing = [f"the type of its parameter {parameters[0].name!r}"] * (parameters[0].annotation is signature.empty)
    missing += ["the type of what it returns (->)"] * (signature.return_annotation is signature.empty)
    if missing:
        raise TypeError(f"stage {name!r} does not declare {' or '.join(missing)}; annotate it with the record types")
