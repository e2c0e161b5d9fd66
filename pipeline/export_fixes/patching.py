"""Patch torch's functions while pipeline traces, and only in the tracing thread.

torch looks up its kernels in tables that all threads share. A patched entry is a function that checks which thread
calls it. A thread in which pipeline traces calls our function; every other thread calls torch's original, even if it
runs an export of its own. Entries are restored when the last trace of pipeline ends. A lock is held only while entries
are changed.
"""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

import torch
from attrs import define, field, frozen
from torch._ops import OpOverload

from pipeline.aten.types import Argument
from pipeline.export_fixes.interrupts import set_contextvar, undo_at_exit

Kernel: TypeAlias = Callable[..., Any]
ModelCall: TypeAlias = tuple[Any, Any, Any]
"""A call of torch in a traced model: the function, its positional arguments, and its keyword arguments."""
PatchKind: TypeAlias = str
"""The name of a kind of trace, in which a replacement is active: see `Replacement.during`."""

_MAJOR, _MINOR = torch.__version__.split(".")[:2]
VERSION = (int(_MAJOR), int(_MINOR))
"""The installed version of torch."""
EXPIRES: Final = (2, 15)
"""The first version of torch for which the replacements have not been checked yet."""

_active_kinds: ContextVar[frozenset[PatchKind]] = ContextVar("pipeline traces", default=frozenset())


def is_patch_active(kind: PatchKind) -> bool:
    """Return whether a kind of replacement is active in this thread."""
    return kind in _active_kinds.get()


@frozen(eq=False)
class Replacement:
    """A patch: one of torch's functions and our function that replaces it.

    Attributes:
        owner: the object in which torch looks up the function: a module, class, table, or operator with Python kernels.
        name: the name that torch looks up: an attribute, a key, or a dispatch key.
        ours: our function; its first argument is torch's function, followed by the call's arguments.
        why: what torch does without the patch.
        during: the kind of trace that needs the patch: ``"trace"``: all; ``"export"``: exports, functionalizations;
            ``"example"``: exports in which the example input decides data-dependent branches; ``"called"``: those in
            which ``is_exporting()`` is False in the model; ``"comparing"``: those in which the example input decides
            comparisons of sizes; ``"gpu"``: those for a GPU that this machine does not have; ``"modelopt"``: those of
            a model quantized by ModelOpt. Other packages use further kinds, such as ``"sharded"``.
        before: the first version of torch that does not need the patch; None: all versions need it.
        since: the first version of torch that needs the patch.
        until: the version of torch for which the patch was not checked yet. With it a test fails, until a developer
            deletes this `Replacement` or, if this torch needs the patch too, sets a later version.
        everywhere: whether all threads call our function, which must then check the calling thread itself.
    """

    owner: Any
    name: Any
    ours: Kernel
    why: str
    during: PatchKind = "trace"
    before: tuple[int, int] | None = None
    since: tuple[int, int] = (0, 0)
    until: tuple[int, int] = EXPIRES
    everywhere: bool = False

    @property
    def target_name(self) -> Argument:
        """The replaced operator, or the name of the replaced function; it identifies the patch in tables and tests."""
        return self.owner if isinstance(self.owner, OpOverload) else self.name

    @property
    def versions(self) -> str:
        """The versions of torch that need the replacement, as text."""
        first = f"from {_dotted_version(self.since)}" if self.since > (0, 0) else ""
        last = f"before {_dotted_version(self.before)}" if self.before is not None else ""
        return " ".join(filter(None, (first, last))) or "all"

    @property
    def is_needed(self) -> bool:
        """Whether the installed torch needs the replacement."""
        if self.since > VERSION or (self.before is not None and self.before <= VERSION):
            return False
        if isinstance(self.owner, dict):
            return self.name in self.owner
        return isinstance(self.owner, OpOverload) or hasattr(self.owner, self.name)

    def read_entry(self) -> Argument:
        """Return what ``owner`` itself stores under ``name``; None if an attribute is inherited, or a kernel unset."""
        if isinstance(self.owner, OpOverload):
            return self.owner.py_kernels.get(self.name)
        return (self.owner if isinstance(self.owner, dict) else vars(self.owner)).get(self.name)

    def write_entry(self, value: Argument) -> None:
        """Set the entry ``name`` of ``owner`` to a function, or restore it to a result of `read_entry`."""
        if isinstance(self.owner, OpOverload):
            self.owner.py_kernels.pop(self.name, None)
            if value is not None:
                self.owner.py_kernels[self.name] = value
            self.owner._uncache_dispatch(self.name)
            self.owner._dispatch_cache.clear()
        elif isinstance(self.owner, dict):
            self.owner[self.name] = value
        elif value is None:
            if self.name in vars(self.owner):
                delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)

    def wrapper_for(self, original: Kernel | None) -> Kernel:
        """Return a function that calls our function in threads that trace, and torch's own in other threads."""
        ours, during, theirs = self.ours, self.during, original
        if theirs is None and isinstance(self.owner, OpOverload):
            theirs = functools.partial(self.owner._op_dk, self.name)
        elif theirs is None:
            theirs = getattr(self.owner, self.name)

        def always(*args: object, **kwargs: object) -> object:
            return ours(theirs, *args, **kwargs)

        @functools.wraps(theirs)
        def either(*args: object, **kwargs: object) -> object:
            return ours(theirs, *args, **kwargs) if is_patch_active(during) else theirs(*args, **kwargs)

        return always if self.everywhere else either


def _dotted_version(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def replacements_as_text(table: Sequence[Replacement]) -> str:
    """Return a table of replacements as text: each function, when it is replaced, for which torch versions, and why."""
    heads = ("replaced", "during", "torch", "expires with", "torch without it")
    rows = ((str(r.target_name), r.during, r.versions, _dotted_version(r.until), r.why) for r in table)
    return align_columns(heads, *rows)


def align_columns(*rows: Sequence[str]) -> str:
    """Return rows of text as lines, with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


@define(eq=False)
class Patches:
    """Replaces functions of torch by the rows of a table while a trace needs them, and keeps torch's functions."""

    table: Sequence[Replacement]
    _lock: Any = field(factory=threading.RLock)
    _traces: defaultdict[str, set[object]] = field(factory=lambda: defaultdict(set))
    _own: dict[Replacement, Any] = field(factory=dict)
    _made: dict[Replacement, tuple[Any, Kernel]] = field(factory=dict)

    @contextmanager
    def activate(self, during: PatchKind) -> Iterator[None]:
        """Return a context that activates a kind of replacement in this thread; ``during``: its name."""
        if is_patch_active(during):
            yield
            return
        trace = object()
        with undo_at_exit(lambda: self._restore(during, trace)):
            with self._lock:
                self._traces[during].add(trace)
                for row in [row for row in self.table if row.during == during and row.is_needed]:
                    own, made = self._own.setdefault(row, row.read_entry()), self._made.get(row)
                    if made is None or made[0] is not own:  # else it is there for other threads, too
                        made = self._made[row] = (own, row.wrapper_for(own))
                    row.write_entry(made[1])
            with set_contextvar(_active_kinds, _active_kinds.get() | {during}):
                yield

    def _restore(self, during: PatchKind, trace: object) -> None:
        """End ``trace``; restore torch's functions if no other trace of its kind is active. It may be called twice."""
        with self._lock:
            self._traces[during].discard(trace)
            if not self._traces[during]:
                for row in [row for row in self._own if row.during == during]:
                    row.write_entry(self._own[row])
                    del self._own[row]
