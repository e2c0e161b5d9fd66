"""Stages and pipelines: a pipeline is an immutable value, checked when it is created.

A stage accepts one record and returns one record. `@stage` converts an annotated function to a stage; a frozen record
with an annotated `__call__` already is a stage. `|` joins stages and pipelines to a `Pipeline`. Its methods, such as
`replace`, return a changed pipeline, and address stages by name.
"""

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial, reduce
from types import FunctionType
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar, cast, overload

import attrs

from pipeline.capture.capture import Model, capture
from pipeline.compiled import Compiled
from pipeline.compose.events import Event, Observer, Run, as_observers, report
from pipeline.compose.joins import (
    apply_settings,
    check_adjacent_stages,
    check_first_stage,
    check_settings,
    is_empty,
    refuse_unknown_arguments,
    run_stage,
    stage_index,
)
from pipeline.compose.ledger import Ledger
from pipeline.compose.stage_signature import (
    AnyStage,
    Gives,
    RecordType,
    Stage,
    Takes,
    check_signature,
    innermost_function,
    is_instance,
    is_stage,
    record_types,
    stage_name,
    type_name,
)
from pipeline.program import Built, Converted, Partitioned, Program, Validated
from pipeline.records.wording import kind_of, refuse_assignment
from pipeline.runtime.autocast_context import without_autocast
from pipeline.settings import CompilationSettings

__all__ = ["Event", "FunctionStage", "Observer", "Pipeline", "Stage", "StageLike", "as_stage", "report", "stage"]

Other = TypeVar("Other")
StageLike: TypeAlias = AnyStage | Callable[[Any], Any]


@attrs.frozen(slots=False, repr=False)
class FunctionStage(Generic[Takes, Gives]):
    """A stage from a function or an instance of a frozen class with `__call__`, whose annotations declare input and
    output; or another stage under another name, to insert it twice or in place of another.

    Forward references are resolved at the first read of the types. Calling the stage calls the function."""

    function: Callable[[Takes], Gives]
    name: str

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"the name of a stage is {self.name!r}: expected a string that is not empty")
        if not is_stage(self.function):
            check_signature(self.function, self.name)
        if isinstance(self.function, FunctionType):
            shown: dict[str, object] = {name: getattr(self.function, name) for name in functools.WRAPPER_ASSIGNMENTS}
            self.__dict__.update(shown, __wrapped__=self.function)

    def __call__(self, record: Takes, /) -> Gives:
        return self.function(record)

    @property
    def takes(self) -> RecordType:
        return self._record_types[0]

    @property
    def gives(self) -> RecordType:
        return self._record_types[1]

    @cached_property
    def _record_types(self) -> tuple[object, object]:
        step: Any = self.function
        return (step.takes, step.gives) if is_stage(step) else record_types(step, self.name)

    def __or__(self, other: Callable[[Gives], Other]) -> "Pipeline[Takes, Other]":
        first: Pipeline[Takes, Gives] = Pipeline((self,))
        return first | other

    def __repr__(self) -> str:
        """Return the stage's name, and the record types of its input and output."""
        return f"<stage {describe_stage(self)}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        """Pickle by name if the stage is an attribute of its module under its function's name, else by its fields."""
        module, name = getattr(self, "__module__", ""), getattr(self, "__qualname__", "")
        if name and getattr(sys.modules.get(module), name, None) is self:
            return str(name)
        return FunctionStage, (self.function, self.name)


@overload
def stage(function: Callable[[Takes], Gives], /) -> FunctionStage[Takes, Gives]: ...
@overload
def stage(*, name: str) -> Callable[[Callable[[Takes], Gives]], FunctionStage[Takes, Gives]]: ...
def stage(function: Callable[[Any], object] | None = None, /, *, name: str | None = None) -> object:
    """Convert a function that takes one record, such as a `Program`, and returns one, to a stage: decorate it with
    `@stage`, or with `@stage(name="…")` for another name than the function's.

    If the parameter or the result is not annotated, it raises a `TypeError` that names the missing annotation.
    """
    if function is None:
        return lambda function: FunctionStage(function, stage_name(function) if name is None else name)
    return FunctionStage(function, stage_name(function))


def as_stage(value: object) -> AnyStage:
    """Convert a value to a stage. A stage or pipeline stays unchanged. A function, or a frozen object with `__call__`,
    needs annotations. An instance's stage is named after its `name`, or its class in snake case:
    `OneEngine()` is `one_engine`.
    """
    if isinstance(value, type):
        raise TypeError(f"{value.__name__} is a class: pass an instance as the stage, such as {value.__name__}()")
    if not callable(value):
        raise TypeError(f"{value!r} is not a stage: expected a function from one record, say Program, to another")
    if is_stage(value):
        return cast(AnyStage, value)
    if type(value).__hash__ is None:
        raise TypeError(f"the stage {type(value).__name__} is mutable: make its class immutable with attrs.frozen")
    return FunctionStage(value, stage_name(value))


def pass_earlier_stages(step: AnyStage, earlier: tuple[AnyStage, ...]) -> AnyStage:
    """Set the field ``earlier_stages`` of a stage that has it (`verify`, `load`, `choose`), which compiles programs
    again; return other stages unchanged."""
    inner: Any = innermost_function(step)
    if not attrs.has(type(inner)) or "earlier_stages" not in attrs.fields_dict(type(inner)):
        return step
    return FunctionStage(as_stage(attrs.evolve(inner, earlier_stages=earlier)), step.name)


def describe_stage(step: AnyStage) -> str:
    """Describe a stage in a line: its name, its implementation if that has another name, and its record types."""
    own = stage_name(step.function if isinstance(step, FunctionStage) else step)
    try:
        types = f"{type_name(step.takes)} -> {type_name(step.gives)}"
    except TypeError:
        types = "? -> ?"
    return f"{step.name}{f' ({own})' if own != step.name else ''}: {types}"


def _to_stages(value: Iterable[StageLike]) -> tuple[AnyStage, ...]:
    if not isinstance(value, Iterable):
        raise TypeError(f"stages is {kind_of(value)}: expected a sequence of stages, such as Pipeline((stage,))")
    return tuple(as_stage(item) for item in value)


@refuse_assignment("replace, insert, without, until and | return others")
@attrs.frozen(repr=False)
class Pipeline(Generic[Takes, Gives]):
    """A sequence of stages, which is callable, immutable, and itself a stage.

    ``Pipeline[Takes, Gives]`` has the input type of its first stage and the output type of its last stage:
    ``pipeline.default()`` is a ``Pipeline[Program, Compiled]``. If a type checker cannot know the types after a change
    by name, the result is a ``Pipeline`` of ``Any``; the types of adjacent stages are still checked at creation.

    stages: the stages in order, converted by `as_stage`. Each stage accepts the previous stage's result.
    settings: the settings for capturing models. None means the defaults; then `|` uses the other pipeline's settings.
    observers: called with every `Event`, in order. If one raises, this is logged, and it gets no more events.

    Raises a `TypeError` that names both stages and record types if adjacent stages do not fit, and a `ValueError` for a
    duplicate name. Pipelines are equal if their fields are. `Pipeline()` is the identity of `|`, which is associative.
    """

    stages: tuple[AnyStage, ...] = attrs.field(default=(), converter=_to_stages)
    _settings: CompilationSettings | None = attrs.field(default=None, validator=check_settings)
    observers: tuple[Observer, ...] = attrs.field(default=(), converter=as_observers)

    def __attrs_post_init__(self) -> None:
        check_adjacent_stages(self.stages)

    @overload
    def __call__(
        self: "Pipeline[Program, Gives]",
        model: Model,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        dynamic_shapes: object = None,
        *,
        output_names: Sequence[str] | None = None,
    ) -> Gives: ...
    @overload
    def __call__(self, record: Takes, /) -> Gives: ...
    def __call__(
        self,
        model: Any,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        dynamic_shapes: Any = None,
        *,
        output_names: Sequence[str] | None = None,
        profiles: Sequence[object] | None = None,
        **unknown: object,
    ) -> object:
        """Compile a model, or run the stages on a record of the first stage's input type.

        model: an nn.Module, ExportedProgram or TorchScript with its `args`, `kwargs` and `dynamic_shapes` (see
            `pipeline.capture`); or, as the only argument, the record. A program gets this pipeline's settings.
        profiles: several `dynamic_shapes`: each call has to fit one of them, and engines are tuned for each.
        output_names: the names of the model's outputs in engines, reports and files; None: the result's keys.
        Returns the last stage's result. Exceptions of a stage propagate unchanged, with a note that names the stage.
        """
        refuse_unknown_arguments(unknown)
        with _select_ledger(self.observers, self.settings.progress, self.names) as ledger:
            before, run = len(ledger.entries), Run((ledger, *(each for each in self.observers if each is not ledger)))
            options = (dynamic_shapes, output_names, profiles)
            alone = is_empty(args) and is_empty(kwargs) and all(option is None for option in options)
            if alone and is_instance(model, self.takes):
                record = apply_settings(self._settings, model, self.stages)
            else:
                check_first_stage(self.stages, model, self.settings)
                front = partial(capture, model, args, kwargs, dynamic_shapes, self.settings, output_names=output_names)
                record = run.call("capture", partial(front, profiles=profiles))
            made = self._run_stages(run, record)
        return attrs.evolve(made, took=tuple(ledger.entries[before:])) if isinstance(made, Compiled) else made

    def _run_stages(self, run: Run, record: object) -> Any:
        """Return the last stage's result for the first stage's input, ``record``; ``run`` informs the observers."""
        steps = [pass_earlier_stages(step, self.stages[:i]) for i, step in enumerate(self.stages)]
        with without_autocast():
            return reduce(lambda given, step: run.call(step.name, lambda: run_stage(step, given), given), steps, record)

    @property
    def settings(self) -> CompilationSettings:
        """Return the settings that models are captured with."""
        return self._settings if self._settings is not None else CompilationSettings()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the stages, in order."""
        return tuple(step.name for step in self.stages)

    @property
    def name(self) -> str:
        """Return the pipeline's name as a stage of another pipeline: the joined names of its stages."""
        return "|".join(self.names)

    @property
    def takes(self) -> RecordType:
        """Return the record type of the first stage's input; without stages, `Any`."""
        return self.stages[0].takes if self.stages else object

    @property
    def gives(self) -> RecordType:
        """Return the record type of the last stage's output; without stages, the type of the input."""
        return self.stages[-1].gives if self.stages else object

    def __or__(self, other: Callable[[Gives], Other]) -> "Pipeline[Takes, Other]":
        """Return this pipeline followed by another, with all observers and its own settings (if None, the other's)."""
        after = _as_pipeline(other)
        settings = self._settings if self._settings is not None else after._settings
        return Pipeline(self.stages + after.stages, settings, self.observers + after.observers)

    def __ror__(self, other: Callable[[Other], Takes]) -> "Pipeline[Other, Gives]":
        return _as_pipeline(other) | self

    @overload
    def replace(self, name: Literal["decompose", "improve"], stage: Callable[[Program], Program]) -> Self: ...
    @overload
    def replace(self, name: Literal["validate"], stage: Callable[[Program], Validated]) -> Self: ...
    @overload
    def replace(self, name: Literal["partition"], stage: Callable[[Validated], Partitioned]) -> Self: ...
    @overload
    def replace(self, name: Literal["convert"], stage: Callable[[Partitioned], Converted]) -> Self: ...
    @overload
    def replace(self, name: Literal["build"], stage: Callable[[Converted], Built]) -> Self: ...
    @overload
    def replace(self, name: Literal["refit_map", "verify"], stage: Callable[[object], Compiled]) -> Self: ...
    @overload
    def replace(self, name: str, stage: StageLike) -> "Pipeline[Any, Any]": ...
    def replace(self, name: str, stage: Any) -> Any:
        """Return the pipeline with a stage replaced. The new stage has the *old name*, so it can be replaced again.

        A pipeline as the new stage runs as one stage, with its own observers.
        """
        at, made = self._stage_index(name), as_stage(stage)
        if made.name != name:
            made = FunctionStage(
                made.function if isinstance(made, FunctionStage) and is_stage(made.function) else made, name
            )
        return self._with_stages((*self.stages[:at], made, *self.stages[at + 1 :]))

    @overload
    def insert(self, stage: Callable[[Other], Other], *, before: str = ..., after: str = ...) -> Self: ...
    @overload
    def insert(self, stage: StageLike, *, before: str = ..., after: str = ...) -> "Pipeline[Any, Any]": ...
    def insert(self, stage: Any, *, before: str | None = None, after: str | None = None) -> Any:
        """Return the pipeline with a stage, or a pipeline's stages and observers, inserted at a named stage."""
        if (before is None) == (after is None):
            given = "both" if before else "neither"
            raise TypeError(f"insert needs the name of a stage, either as before= or as after=, got {given}")
        at = self._stage_index(before) if before is not None else self._stage_index(after or "") + 1
        new = _as_pipeline(stage)
        stages = (*self.stages[:at], *new.stages, *self.stages[at:])
        return Pipeline(stages, self._settings, self.observers + new.observers)

    @overload
    def without(self, name: Literal["decompose", "improve", "avoid_faults", "verify"]) -> Self: ...
    @overload
    def without(self, name: str) -> "Pipeline[Any, Any]": ...
    def without(self, name: str) -> Any:
        """Return the pipeline without the stage of this name."""
        at = self._stage_index(name)
        return self._with_stages(self.stages[:at] + self.stages[at + 1 :])

    @overload
    def until(self, name: Literal["decompose", "improve"]) -> "Pipeline[Takes, Program]": ...
    @overload
    def until(self, name: Literal["validate"]) -> "Pipeline[Takes, Validated]": ...
    @overload
    def until(self, name: Literal["partition", "avoid_faults"]) -> "Pipeline[Takes, Partitioned]": ...
    @overload
    def until(self, name: Literal["convert"]) -> "Pipeline[Takes, Converted]": ...
    @overload
    def until(self, name: Literal["build"]) -> "Pipeline[Takes, Built]": ...
    @overload
    def until(self, name: Literal["refit_map", "verify"]) -> "Pipeline[Takes, Compiled]": ...
    @overload
    def until(self, name: str) -> "Pipeline[Takes, Any]": ...
    def until(self, name: str) -> Any:
        """Return the pipeline up to and including the stage of this name; a call returns that stage's result."""
        return self._with_stages(self.stages[: self._stage_index(name) + 1])

    def observed_by(self, *observers: Observer) -> Self:
        """Return the pipeline with these observers added after the existing observers."""
        return attrs.evolve(self, observers=self.observers + observers)

    def _with_stages(self, stages: tuple[AnyStage, ...]) -> "Pipeline[Any, Any]":
        return Pipeline(stages, self._settings, self.observers)

    def _stage_index(self, name: str) -> int:
        return stage_index(name, self.names)

    def __getitem__(self, name: str) -> AnyStage:
        """Return the stage of this name; raise a `KeyError` that lists the names."""
        return self.stages[self._stage_index(name)]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[AnyStage]:
        return iter(self.stages)

    def __len__(self) -> int:
        return len(self.stages)

    def __bool__(self) -> bool:
        """Return True, even for a pipeline without stages."""
        return True

    def __repr__(self) -> str:
        """Return a line for each stage: its name, and the record types of its input and output."""
        facts = [repr(self._settings)] if self._settings is not None else []
        facts += [f"{len(self.observers)} observer{'s'[: len(self.observers) != 1]}"] if self.observers else []
        return "\n".join([f"Pipeline({', '.join(facts)})", *(f"  {describe_stage(step)}" for step in self.stages)])


def _as_pipeline(part: StageLike) -> Pipeline[Any, Any]:
    return part if isinstance(part, Pipeline) else Pipeline((as_stage(part),))


def _select_ledger(
    observers: Sequence[Observer], progress: bool | None, stage_names: Sequence[str]
) -> AbstractContextManager[Ledger]:
    """Return a context with the first ledger among the observers, so that memory is read only once. Without one, it has
    a new ledger, which reads memory every 50 ms, and shows progress bars if ``progress`` is True, or is None on a
    terminal. ``stage_names``: the run's stages."""
    if (known := next((each for each in observers if isinstance(each, Ledger)), None)) is not None:
        return nullcontext(known)
    if stage_names and (sys.stderr is not None and sys.stderr.isatty() if progress is None else progress):
        from pipeline.compose.progress import StageProgress  # rich takes a while to import

        return StageProgress(show=True, transient=True, interval=0.05)
    return nullcontext(Ledger(interval=0.05))
