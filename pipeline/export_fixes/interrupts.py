"""Undo a trace's changes to the process when an interrupt (Ctrl-C) stops it at any step.

Python raises ``KeyboardInterrupt`` between any two of its steps: after a context was entered and before its ``with``
knows, as ``__exit__`` begins, or while it runs. So a change is noted before it is made, and undone by steps that may
run twice; what a ``with`` did not undo, `interruptible` does.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from traceback import clear_frames
from typing import ParamSpec, TypeVar

from attrs import define

from pipeline.aten.types import Argument
from pipeline.export_fixes.torch_state import dispatch_keys_restored, process_state, thread_state

P = ParamSpec("P")
T = TypeVar("T")


@define(eq=False)
class _Change:
    undo: Callable[[], None]
    is_undone: bool = False

    def end(self) -> None:
        """Undo the change, once."""
        if not self.is_undone:
            self.undo()
            self.is_undone = True


_changes: ContextVar[list[_Change] | None] = ContextVar("changes of the process", default=None)


@contextmanager
def undoing(undo: Callable[[], None]) -> Iterator[None]:
    """Return a context at whose end ``undo`` is called. After an interrupt `interruptible` calls it, once the inner
    contexts of torch have ended; an interrupted ``undo`` is called again."""
    found, change = _changes.get(), _Change(undo)
    changes = [] if found is None else found
    changes.append(change)
    try:
        yield
    except BaseException as error:
        if found is None or isinstance(error, Exception):
            change.end()
            changes.remove(change)
        raise
    change.end()
    changes.remove(change)


@contextmanager
def set_to(variable: ContextVar[Argument], value: T) -> Iterator[T]:
    """Return a context in which a context variable has a value; it yields the value."""
    token = variable.set(value)
    try:
        yield value
    finally:
        with suppress(ValueError):  # the context of what was interrupted has gone
            variable.reset(token)


def interruptible(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function so that an interrupt leaves the process and its context variables unchanged."""

    def run(changes: list[_Change], *args: P.args, **kwargs: P.kwargs) -> T:
        _changes.set(changes)
        return function(*args, **kwargs)

    @functools.wraps(function)
    def as_it_was(*args: P.args, **kwargs: P.kwargs) -> T:
        changes, process, handled = [_Change(thread_state())], process_state(), sys.exc_info()[1]
        with dispatch_keys_restored():
            try:
                return copy_context().run(run, changes, *args, **kwargs)
            except BaseException as error:
                changes.insert(0, _Change(process))
                if not isinstance(error, Exception):
                    _end_contexts(error, handled)
                raise
            finally:
                try:
                    _end(changes)
                except BaseException:  # it is interrupted itself
                    _end(changes)
                    raise

    return as_it_was


def _end_contexts(error: BaseException, handled: BaseException | None) -> None:
    """End the contexts that nobody leaves any more: now, and not with a traceback or when garbage is collected. One
    that puts back a mode of torch's would do so after the modes were put back. Tracebacks of what the caller handles
    (``handled``) stay as they are."""
    found: BaseException | None = error
    while found is not None and found is not handled:
        clear_frames(found.__traceback__)
        found = found.__context__
    gc.collect()


def _end(changes: list[_Change]) -> None:
    """Undo changes, the last one first."""
    while changes:
        changes[-1].end()
        changes.pop()
