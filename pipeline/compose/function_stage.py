"""What a stage is, and how a function or a frozen record becomes one."""

import functools
import inspect
import re
import sys
from collections.abc import Callable
from functools import cached_property
from types import FunctionType, MethodType, NoneType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, get_type_hints, overload

import attrs

from pipeline.compose.annotations import type_name

if TYPE_CHECKING:
    from pipeline.compose.pipelines import Pipeline

Takes = TypeVar("Takes", contravariant=True)
Gives = TypeVar("Gives", covariant=True)


class Stage(Protocol):
    """Anything with a name, the record types it takes and gives, and a call from the one to the other; it is pure."""

    @property
    def name(self) -> str:
        """What addresses it in a pipeline."""

    @property
    def takes(self) -> Any:
        """The record type that it takes."""

    @property
    def gives(self) -> Any:
        """The record type that it gives."""

    def __call__(self, record: Any, /) -> Any:
        """The record that it makes of this one."""


class _Joined:
    """What a stage needs for `|`."""

    def __or__(self: Stage, other: "Stage | Callable[..., Any]") -> "Pipeline":
        """This stage, then the other stage or pipeline."""
        from pipeline.compose.pipelines import Pipeline

        return Pipeline((self,)) | other

    def __repr__(self: Stage) -> str:
        """Its name, what it takes and what it gives."""
        return f"<stage {described(self)}>"


@attrs.frozen(slots=False, repr=False)
class FunctionStage(_Joined, Generic[Takes, Gives]):
    """A stage made of a function, or of a frozen record with `__call__`, whose annotations say what it takes and gives.

    Forward references are resolved when the types are first asked for. Calling it calls the function.
    """

    function: Callable[[Takes], Gives]
    name: str

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"a stage's name is a string, not {self.name!r}")
        _check_signature(self.function, self.name)
        if isinstance(self.function, FunctionType):
            shown: dict[str, Any] = {name: getattr(self.function, name) for name in functools.WRAPPER_ASSIGNMENTS}
            self.__dict__.update(shown, __wrapped__=self.function)

    def __call__(self, record: Takes, /) -> Gives:
        """What the function makes of the record."""
        return self.function(record)

    @property
    def takes(self) -> Any:
        """The annotation of the function's first parameter."""
        return self._types[0]

    @property
    def gives(self) -> Any:
        """The annotation of what the function returns."""
        return self._types[1]

    @cached_property
    def _types(self) -> tuple[Any, Any]:
        try:
            hints = get_type_hints(_annotated(self.function))
        except NameError as error:
            raise TypeError(
                f"stage {self.name!r}: the annotation {error.name!r} is not known in the module of the function; "
                "define or import it at the module's top level (not under TYPE_CHECKING)"
            ) from error
        if hints["return"] is NoneType:
            raise TypeError(f"stage {self.name!r} is annotated to return None; a stage gives a record")
        return hints[next(iter(inspect.signature(self.function).parameters))], hints["return"]

    def __reduce__(self) -> str | tuple[Any, ...]:
        """By name where it stands in its module under its function's name, else by its parts."""
        module, name = getattr(self, "__module__", ""), getattr(self, "__qualname__", "")
        if name and getattr(sys.modules.get(module), name, None) is self:
            return str(name)
        return FunctionStage, (self.function, self.name)


@attrs.frozen(repr=False)
class Named(_Joined):
    """A stage under another name."""

    stage: Stage
    name: str

    @property
    def takes(self) -> Any:
        """What the stage takes."""
        return self.stage.takes

    @property
    def gives(self) -> Any:
        """What the stage gives."""
        return self.stage.gives

    def __call__(self, record: Any, /) -> Any:
        """What the stage makes of the record."""
        return self.stage(record)


@overload
def stage(function: Callable[[Takes], Gives], /) -> FunctionStage[Takes, Gives]: ...
@overload
def stage(*, name: str) -> Callable[[Callable[[Takes], Gives]], FunctionStage[Takes, Gives]]: ...
def stage(function: Callable[[Any], Any] | None = None, /, *, name: str | None = None) -> Any:
    """Makes a stage of a function from record to record: `@stage`, or `@stage(name="…")` for a name of its own.

    `TypeError` saying what is missing, if the parameter or the result is not annotated.
    """
    if function is None:
        return lambda function: FunctionStage(function, _name(function) if name is None else name)
    return FunctionStage(function, _name(function))


def as_stage(value: Any) -> Stage:
    """The value as a stage: one already (pipelines too), or a function or frozen record whose call is annotated.

    A record is called by its `name`, or by its class in snake case: `OneEngine()` is `one_engine`.
    """
    if isinstance(value, type):
        raise TypeError(f"{value.__name__} is a class; the stage is an instance, such as {value.__name__}()")
    if not callable(value):
        raise TypeError(f"{value!r} is no stage: a stage is called with a record and gives a record")
    if all(inspect.getattr_static(value, part, None) is not None for part in ("name", "takes", "gives")):
        return value  # type: ignore[no-any-return]
    if type(value).__hash__ is None:
        raise TypeError(f"{type(value).__name__} can be changed; a stage is frozen (attrs.frozen)")
    return FunctionStage(value, _name(value))


def described(step: Stage) -> str:
    """One line: the name, the implementation where it is called otherwise, what the stage takes and gives."""
    inner = step.function if isinstance(step, FunctionStage) else step.stage if isinstance(step, Named) else step
    own = _name(inner)
    try:
        types = f"{type_name(step.takes)} -> {type_name(step.gives)}"
    except TypeError:
        types = "? -> ?"
    return f"{step.name}{f' ({own})' if own != step.name else ''}: {types}"


def _name(function: object) -> str:
    """The `name` or `__name__` of a function or record, or its class in snake case."""
    for attribute in ("name", "__name__"):
        name = getattr(function, attribute, None)
        if isinstance(name, str) and name:
            return name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(function).__name__).lower()


def _annotated(function: Callable[..., Any]) -> Callable[..., Any]:
    return function if isinstance(function, FunctionType | MethodType) else type(function).__call__


def _check_signature(function: Callable[..., Any], name: str) -> None:
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
        raise TypeError(f"stage {name!r} does not say {' or '.join(missing)}; annotate it with the records")
