"""Events for observers of a running pipeline, and ``report``, which stages call to report progress."""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from time import perf_counter
from typing import Any, Literal, TypeAlias

import attrs

from pipeline.export_fixes.interrupts import interruptible, set_contextvar

log = logging.getLogger(__name__)

Kind: TypeAlias = Literal["started", "finished", "failed", "progress"]


@attrs.frozen(eq=False)
class Event:
    """An event that a running pipeline sends to its observers: a stage started, made progress, finished or failed.

    kind: started, progress (any number of times), then finished or failed.
    stage: the stage's name in the pipeline; `capture` for the capture of the model.
    seconds: how long the stage took; None until it has finished or failed.
    record: the stage's input (started, failed) or output (finished); None for progress. Do not change it.
    done, total: the number of completed steps, and of all steps, of the stage; None if it reports no progress.
    detail: a text for the current step, or the error that the stage failed with.
    """

    kind: Kind
    stage: str
    seconds: float | None = None
    record: Any = attrs.field(default=None, repr=False)
    done: int | None = None
    total: int | None = None
    detail: str = ""


Observer: TypeAlias = Callable[[Event], object]


def as_observers(values: Iterable[Observer]) -> tuple[Observer, ...]:
    """Convert observers to a tuple; raise a `TypeError` for an observer that is not callable."""
    observers = tuple(values)
    for observer in observers:
        if not callable(observer):
            raise TypeError(f"the observer {observer!r} is not callable: expected a function that takes an Event")
    return observers


_progress: ContextVar[Callable[[int, int | None, str], None] | None] = ContextVar("pipeline_progress", default=None)


def report(done: int, total: int | None = None, detail: str = "") -> None:
    """Report a stage's progress to the observers of the running pipeline. Call it inside a stage; it changes no result.

    The observers are in a context variable that is set only while a stage runs; otherwise this function does nothing. A
    thread that a stage starts has a new context; run its work by `contextvars.copy_context().run` to let it report.
    """
    tell = _progress.get()
    if tell is not None:
        tell(done, total, detail)


class Run:
    """One run of a pipeline, which tells the pipeline's observers about each stage (see `Event`).

    An observer that raises does not break the compilation: the error is logged as a warning, and the observer gets no
    more events of this run. KeyboardInterrupt and the like propagate.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = list(observers)

    def emit(self, event: Event) -> None:
        """Send an event to every observer in turn. If an observer itself calls `report`, that call has no effect."""
        with set_contextvar(_progress, None):
            for observer in tuple(self._observers):
                try:
                    observer(event)
                except Exception:
                    self._observers.remove(observer)
                    why = "observer %r raised an error at the event %r; it is not called again in this run"
                    log.warning(why, observer, event, exc_info=True)

    def call(self, stage: str, function: Callable[[], object], record: object = None) -> Any:
        """Call a function as the stage of this name, and send its events; an exception gets a note with the name.
        ``record``: the stage's input."""

        def tell(done: int, total: int | None, detail: str) -> None:
            self.emit(Event("progress", stage, done=done, total=total, detail=detail))

        self.emit(Event("started", stage, record=record))
        start = perf_counter()
        try:
            result = interruptible(set_contextvar(_progress, tell)(function))()
        except BaseException as error:
            error.add_note(f"in stage {stage!r} of the pipeline")
            self.emit(Event("failed", stage, perf_counter() - start, record, detail=f"{type(error).__name__}: {error}"))
            raise
        self.emit(Event("finished", stage, perf_counter() - start, result))
        return result
