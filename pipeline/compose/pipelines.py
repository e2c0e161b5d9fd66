"""Stages, and how they compose: a pipeline is a value, checked when it is made.

A stage takes one record and gives one. `@stage` makes one from an annotated function; a frozen record with an annotated
`__call__` is one as it stands. `|` joins stages and pipelines to a `Pipeline`, and the names of the stages address the
places where it may be changed.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial, reduce
from itertools import pairwise
from types import FunctionType
from typing import Any, Generic, TypeAlias, TypeVar, overload

import attrs
import torch

from pipeline.compose.annotations import accepts, is_instance, type_name
from pipeline.compose.events import Event, Observer, Run, report
from pipeline.compose.joins import check_join, check_names, checked, empty, what
from pipeline.compose.stage_signature import Stage, check_signature, name_of, record_types
from pipeline.frontend.capture import capture
from pipeline.program import Program
from pipeline.runtime.ambient import without_autocast
from pipeline.settings import CompilationSettings

__all__ = ["Event", "FunctionStage", "Observer", "Pipeline", "Stage", "StageLike", "as_stage", "report", "stage"]

Takes = TypeVar("Takes", contravariant=True)
Gives = TypeVar("Gives", covariant=True)
StageLike: TypeAlias = Stage | Callable[..., Any]


class _Joined:
    """What a stage needs for `|`."""

    def __or__(self: Stage, other: "StageLike") -> "Pipeline":
        """This stage, then the other stage or pipeline."""
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
        check_signature(self.function, self.name)
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
        return record_types(self.function, self.name)

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
        return lambda function: FunctionStage(function, name_of(function) if name is None else name)
    return FunctionStage(function, name_of(function))


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
    return FunctionStage(value, name_of(value))


def following(step: Stage, before: tuple[Stage, ...]) -> Stage:
    """A stage that runs after others: told of them, where it has a method ``following`` to be told by.

    So a stage that compiles again, such as `verify`, does that as the pipeline does which it is a part of.
    """
    inner = step.stage if isinstance(step, Named) else step.function if isinstance(step, FunctionStage) else step
    told = getattr(inner, "following", None)
    if isinstance(inner, FunctionStage):
        return Named(following(inner, before), step.name)
    return step if told is None else as_stage(Named(as_stage(told(before)), step.name))


def described(step: Stage) -> str:
    """One line: the name, the implementation where it is called otherwise, what the stage takes and gives."""
    inner = step.function if isinstance(step, FunctionStage) else step.stage if isinstance(step, Named) else step
    own = name_of(inner)
    try:
        types = f"{type_name(step.takes)} -> {type_name(step.gives)}"
    except TypeError:
        types = "? -> ?"
    return f"{step.name}{f' ({own})' if own != step.name else ''}: {types}"


def _stages(value: Iterable[StageLike]) -> tuple[Stage, ...]:
    if not isinstance(value, Iterable):
        raise TypeError(f"stages are a sequence, such as Pipeline((stage,)), not a {type(value).__name__}")
    return tuple(as_stage(item) for item in value)


def _observers(value: Iterable[Observer]) -> tuple[Observer, ...]:
    observers = tuple(value)
    for observer in observers:
        if not callable(observer):
            raise TypeError(f"an observer is called with each Event; {observer!r} cannot be called")
    return observers


def _check_settings(_: Any, __: Any, value: Any) -> None:
    if value is not None and not isinstance(value, CompilationSettings):
        raise TypeError(f"settings are CompilationSettings or None, not {value!r}")


@attrs.frozen(repr=False)
class Pipeline:
    """Stages run one after the other: callable, immutable, and itself a stage.

    stages: what runs, in order. Each is made a stage by `as_stage`; each takes what the one before it gives.
    settings: what the front door captures with; None means the default settings, and gives way to another's in `|`.
    observers: called with every `Event`, in order. One that raises is logged and hears no more of that run.

    `TypeError` naming both stages and both records where a join does not fit; `ValueError` for a name used twice.
    Pipelines equal when their parts do. `Pipeline()` is the identity of `|`, which is associative.
    """

    stages: tuple[Stage, ...] = attrs.field(default=(), converter=_stages)
    _settings: CompilationSettings | None = attrs.field(default=None, validator=_check_settings)
    observers: tuple[Observer, ...] = attrs.field(default=(), converter=_observers)

    def __attrs_post_init__(self) -> None:
        check_names(self.names)
        for before, after in pairwise(self.stages):
            check_join(before, after)

    def __call__(
        self,
        model: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        dynamic_shapes: Any = None,
        *,
        output_names: Sequence[str] | None = None,
        **unknown: Any,
    ) -> Any:
        """Compiles a model, or runs the stages on the record that the first of them takes.

        model: an nn.Module or ExportedProgram with its `args`, `kwargs` and `dynamic_shapes` (see
            `pipeline.capture`); or, as the only argument, the record.
        output_names: what the model's outputs are called in engines, reports and files; None: by their keys.
        Gives what the last stage gives. What a stage raises passes unchanged, with a note naming the stage.
        """
        if unknown:
            raise TypeError(_other_argument(next(iter(unknown))))
        run = Run(self.observers)
        alone = empty(args) and empty(kwargs) and dynamic_shapes is None and output_names is None
        if alone and is_instance(model, self.takes):
            return self._run(run, model)
        self._check_front_door(model)
        front = partial(capture, model, args, kwargs, dynamic_shapes, self.settings, output_names=output_names)
        return self._run(run, run.call("capture", front))

    def _run(self, run: Run, record: Any) -> Any:
        steps = [following(step, self.stages[:i]) for i, step in enumerate(self.stages)]
        with without_autocast():
            return reduce(lambda given, step: run.call(step.name, lambda: checked(step, given), given), steps, record)

    def _check_front_door(self, model: object) -> None:
        """Only a pipeline that starts with a Program takes models; said before the model is captured."""
        if self.stages and accepts(self.takes, Program):
            if isinstance(model, torch.nn.Module | torch.export.ExportedProgram):
                return
            raise TypeError(
                f"{what(model)} cannot be compiled: pass an nn.Module or ExportedProgram with its args, "
                f"or only the {type_name(self.takes)} that the first stage takes"
            )
        first = f"with {self.names[0]!r}, which takes {type_name(self.takes)}" if self.stages else "with nothing"
        raise TypeError(
            f"this pipeline starts {first}: call it with that record alone, not with {type(model).__name__} or args; "
            "to compile a model, begin with the stage 'decompose'"
        )

    @property
    def settings(self) -> CompilationSettings:
        """The settings that the front door captures with."""
        return self._settings if self._settings is not None else CompilationSettings()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the stages, in order."""
        return tuple(step.name for step in self.stages)

    @property
    def name(self) -> str:
        """What it is called as a stage of another pipeline: its own stages' names, joined."""
        return "|".join(self.names)

    @property
    def takes(self) -> Any:
        """The record that the first stage takes; without stages, any."""
        return self.stages[0].takes if self.stages else object

    @property
    def gives(self) -> Any:
        """The record that the last stage gives; without stages, whatever it is given."""
        return self.stages[-1].gives if self.stages else object

    def __or__(self, other: StageLike) -> "Pipeline":
        """This, then the other. Settings are the leftmost's that has any; observers are those of both."""
        after = _pipeline(other)
        settings = self._settings if self._settings is not None else after._settings
        return Pipeline(self.stages + after.stages, settings, self.observers + after.observers)

    def __ror__(self, other: StageLike) -> "Pipeline":
        """The stage, then this."""
        return _pipeline(other) | self

    def replace(self, name: str, stage: StageLike) -> "Pipeline":
        """The new stage in this one's place, *which keeps its name*, so that it can be replaced again by the same name.

        A pipeline in the place of a stage runs there as one stage, with its own observers.
        """
        at = self._index(name)
        return self._with((*self.stages[:at], _named(stage, name), *self.stages[at + 1 :]))

    def insert(self, stage: StageLike, *, before: str | None = None, after: str | None = None) -> "Pipeline":
        """The stage, or all stages of a pipeline and its observers, before or after the stage of that name."""
        if (before is None) == (after is None):
            raise TypeError("insert takes either before= or after=, the name of a stage")
        at = self._index(before) if before is not None else self._index(after or "") + 1
        new = _pipeline(stage)
        stages = (*self.stages[:at], *new.stages, *self.stages[at:])
        return Pipeline(stages, self._settings, self.observers + new.observers)

    def without(self, name: str) -> "Pipeline":
        """All stages but this one."""
        at = self._index(name)
        return self._with(self.stages[:at] + self.stages[at + 1 :])

    def until(self, name: str) -> "Pipeline":
        """The stages up to this one, which is the last to run: its record is what the call gives."""
        return self._with(self.stages[: self._index(name) + 1])

    def observed_by(self, *observers: Observer) -> "Pipeline":
        """The same, with these observers called after those it has."""
        return Pipeline(self.stages, self._settings, self.observers + observers)

    def _with(self, stages: tuple[Stage, ...]) -> "Pipeline":
        return Pipeline(stages, self._settings, self.observers)

    def _index(self, name: str) -> int:
        if name not in self.names:
            raise KeyError(f"no stage {name!r}; the stages are {', '.join(self.names) or 'none'}")
        return self.names.index(name)

    def __getitem__(self, name: str) -> Stage:
        """The stage of this name; `KeyError` with the names there are."""
        return self.stages[self._index(name)]

    def __contains__(self, name: object) -> bool:
        """Whether a stage has this name."""
        return name in self.names

    def __iter__(self) -> Iterator[Stage]:
        """The stages, in order."""
        return iter(self.stages)

    def __len__(self) -> int:
        """How many stages there are."""
        return len(self.stages)

    def __bool__(self) -> bool:
        """Always true: without stages it is still a pipeline."""
        return True

    def __repr__(self) -> str:
        """One line a stage: its name, what it takes and what it gives."""
        facts = [repr(self._settings)] if self._settings is not None else []
        facts += [f"{len(self.observers)} observer{'s'[: len(self.observers) != 1]}"] if self.observers else []
        return "\n".join([f"Pipeline({', '.join(facts)})", *(f"  {described(step)}" for step in self.stages)])


def _pipeline(part: StageLike) -> Pipeline:
    return part if isinstance(part, Pipeline) else Pipeline((as_stage(part),))


def _named(part: StageLike, name: str) -> Stage:
    """The same stage under another name."""
    made = as_stage(part)
    if made.name == name:
        return made
    return Named(made.stage if isinstance(made, Named) else made, name)


def _other_argument(name: str) -> str:
    """What takes the place of an argument that a pipeline does not have."""
    ours = {"inputs": "args", "arg_inputs": "args", "sample_inputs": "args", "kwarg_inputs": "kwargs"}
    instead = f"it is called {ours[name]} here" if name in ours else "settings are given to pipeline.default(…)"
    return f"a pipeline takes (model, args, kwargs, dynamic_shapes), and no {name!r}: {instead}"
