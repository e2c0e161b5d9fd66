"""Undo the process-wide changes of a trace if an interrupt (Ctrl-C) stops it at any step.

Python may raise ``KeyboardInterrupt`` between any two bytecode instructions: after ``__enter__`` but before the
``with`` block begins, or when ``__exit__`` begins or runs. So each change is recorded before it is made, and is undone
by steps that may safely run twice. `interruptible` undoes the changes that a ``with`` statement did not.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from traceback import clear_frames
from types import ModuleType
from typing import Final, ParamSpec, TypeVar

import torch
from attrs import define
from torch import _guards, _ops, overrides
from torch.export import _trace
from torch.fx import _symbolic_trace
from torch.utils import _python_dispatch

from pipeline.aten.tracing_thread import one_export
from pipeline.aten.types import Argument

FLAGS: Final[tuple[tuple[ModuleType, str, object], ...]] = (
    (torch.compiler, "_is_compiling_flag", False),
    (torch.compiler, "_is_exporting_flag", False),
    (_symbolic_trace, "_is_fx_tracing_flag", False),
    (_python_dispatch, "_is_in_torch_dispatch_mode", False),
    (_python_dispatch, "_is_in_non_infra_torch_dispatch_mode", False),
    (_python_dispatch, "_is_in_any_mode_without_ignore_compile_internals", False),
    (_trace, "_EXPORT_FLAGS", None),
    (_trace, "_EXPORT_MODULE_HIERARCHY", None),
)
"""Process-wide flags that a trace sets: module, name, and the value outside of traces."""


def thread_state_restorer() -> Callable[[], None]:
    """Return a function that restores the thread-local state of torch that a trace changes, such as its mode stacks."""
    grad, lifts = torch.is_grad_enabled(), torch._C._only_lift_cpu_tensors()
    contexts, operators = dict(vars(_guards._TLS)), _python_dispatch._get_current_dispatch_mode_stack()
    functions = overrides._get_current_function_mode_stack()

    def put_back() -> None:
        torch._C._set_grad_enabled(grad)
        torch._C._set_only_lift_cpu_tensors(lifts)
        vars(_guards._TLS).clear()
        vars(_guards._TLS).update(contexts)
        if not _are_same_modes(_python_dispatch._get_current_dispatch_mode_stack(), operators):
            while torch._C._len_torch_dispatch_stack():
                torch._C._pop_torch_dispatch_stack(None)
            for mode in operators:
                torch._C._push_on_torch_dispatch_stack(mode)
        if not _are_same_modes(overrides._get_current_function_mode_stack(), functions):
            while torch._C._len_torch_function_stack():
                torch._C._pop_torch_function_stack()
            for mode in functions:
                torch._C._push_on_torch_function_stack(mode)

    return put_back


def _are_same_modes(first: list[Argument], second: list[Argument]) -> bool:
    """Return whether two stacks of modes hold the same objects in the same order."""
    return list(map(id, first)) == list(map(id, second))


def process_state_restorer() -> Callable[[], None]:
    """Return a function that waits until no other thread exports, then undoes the process-wide changes of a trace:
    flags, modes and patches of torch.fx that were not set when this function was called."""
    idle = [flag for flag in FLAGS if vars(flag[0]).get(flag[1], flag) is flag[2]]
    modes = _ops.mode_stack_state_for_pre_dispatch()  # of functions and proxies before autograd: one for all threads
    free = [place for place in (0, 1) if modes.get(place) is None]
    unpatched = _fx_patch_reverter()

    def put_back() -> None:
        with one_export:
            for module, name, value in idle:
                setattr(module, name, value)
            for place in free:
                modes.set(place, None)
            unpatched()

    return put_back


def _fx_patch_reverter() -> Callable[[], None]:
    """Return a function that restores what torch.fx tracers replace after this call, in `nn.Module` and elsewhere."""
    before = _symbolic_trace.CURRENT_PATCHER
    names = ("__call__", "__getattr__") if before is None else ()  # else what is there is another thread's
    own = {name: vars(torch.nn.Module)[name] for name in names}

    def take_back() -> None:
        patcher: Argument = _symbolic_trace.CURRENT_PATCHER
        if patcher is not None and patcher is not before:
            for patch in patcher.patches_made:
                with suppress(KeyError):  # it has been taken back
                    patch.revert()
            _symbolic_trace.CURRENT_PATCHER = before
        for name, function in own.items():
            if vars(torch.nn.Module)[name] is not function:
                setattr(torch.nn.Module, name, function)

    return take_back


P = ParamSpec("P")
T = TypeVar("T")


@define(eq=False)
class _Change:
    undo: Callable[[], None]
    is_undone: bool = False

    def undo_once(self) -> None:
        """Call ``undo`` unless it was called before and completed: after an interrupt, changes may be undone again."""
        if not self.is_undone:
            self.undo()
            self.is_undone = True


_changes: ContextVar[list[_Change] | None] = ContextVar("changes of the process", default=None)


@contextmanager
def undo_at_exit(undo: Callable[[], None]) -> Iterator[None]:
    """Return a context that calls ``undo`` at its end. If Ctrl-C interrupts the context inside an
    `interruptible` function, the interruptible function calls ``undo``, after torch's inner contexts have ended. If
    ``undo`` is itself interrupted, it is called again."""
    found, change = _changes.get(), _Change(undo)
    changes = [] if found is None else found
    changes.append(change)
    try:
        yield
    except BaseException as error:
        if found is None or isinstance(error, Exception):
            change.undo_once()
            changes.remove(change)
        raise
    change.undo_once()
    changes.remove(change)


@contextmanager
def set_contextvar(variable: ContextVar[Argument], value: T) -> Iterator[T]:
    """Return a context that sets a context variable to this value, yields the value, and restores the variable."""
    token = variable.set(value)
    try:
        yield value
    finally:
        with suppress(ValueError):  # the context of what was interrupted has gone
            variable.reset(token)


def interruptible(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function: if an interrupt or error ends it, undo its changes of the process and of context variables."""

    def run(changes: list[_Change], *args: P.args, **kwargs: P.kwargs) -> T:
        _changes.set(changes)
        return function(*args, **kwargs)

    @functools.wraps(function)
    def as_it_was(*args: P.args, **kwargs: P.kwargs) -> T:
        changes, process, handled = [_Change(thread_state_restorer())], process_state_restorer(), sys.exc_info()[1]
        included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
        with torch._C._ForceDispatchKeyGuard(included, excluded):
            try:
                return copy_context().run(run, changes, *args, **kwargs)
            except BaseException as error:
                changes.insert(0, _Change(process))
                if not isinstance(error, Exception):
                    _close_interrupted_contexts(error, handled)
                raise
            finally:
                try:
                    _undo_all(changes)
                except BaseException:  # it is interrupted itself
                    _undo_all(changes)
                    raise

    return as_it_was


def _close_interrupted_contexts(error: BaseException, handled_by_caller: BaseException | None) -> None:
    """Close the contexts that an interrupt left open, by clearing the frames in its traceback. Otherwise garbage
    collection would end them later, when they could overwrite modes of torch that were restored. The frames of
    ``handled_by_caller``, the exception that the caller handles, are in use and stay."""
    found: BaseException | None = error
    while found is not None and found is not handled_by_caller:
        clear_frames(found.__traceback__)
        found = found.__context__
    gc.collect()


def _undo_all(changes: list[_Change]) -> None:
    """Undo these recorded changes, the last one first."""
    while changes:
        changes[-1].undo_once()
        changes.pop()
