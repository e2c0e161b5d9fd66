"""Watch what Python changes while a branch is traced that may not be taken."""

from __future__ import annotations

import dis
import functools
import gc
import logging
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, Protocol

from pipeline.aten.types import Argument
from pipeline.errors import folder_of

QUIET: Final = (*map(folder_of, ("torch", "sympy", "mpmath", "pipeline")), "<")
"""Where the code is whose operators tell all that it does: torch's and ours, and what torch computes sizes with."""
STANDARD: Final = sysconfig.get_path("stdlib")
"""Where Python's own is."""

CHANGES: Final = (
    *("append", "extend", "insert", "pop", "popitem", "remove", "clear", "update", "setdefault", "add", "discard"),
    *("appendleft", "extendleft", "popleft", "sort", "reverse", "move_to_end", "__setitem__", "__delitem__"),
)
"""Methods that change Python's containers."""

STORES: Final = ("STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_SUBSCR")


class Watched(Protocol):
    """What is watched: ``effect`` is what it leaves behind first, in words, or empty."""

    effect: str


def watching(made: Watched) -> Callable[[FrameType, str, Argument], None]:
    """A profiler that notes what Python changes, but for what torch does. Python calls it four times a call."""

    def watch(frame: FrameType, event: str, arg: Argument) -> None:
        if event not in ("call", "c_call") or made.effect or is_quiet(frame.f_code.co_filename):
            return
        found = ""
        if event == "call":
            found = _stores(frame.f_code)
        elif getattr(arg, "__name__", "") in CHANGES and _is_container(arg):
            line = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            found = f"{type(arg.__self__).__name__}.{arg.__name__} ({line}) changes what Python has"
        if found and not _is_aside(frame):
            made.effect = found

    return watch


def resume(profiler: Argument) -> None:
    """Go on with the profiler that was there before; cProfile's is no function before Python 3.12."""
    sys.setprofile(profiler if callable(profiler) else None)
    if profiler is not None and not callable(profiler):
        profiler.enable()


def _is_aside(frame: FrameType | None) -> bool:
    """Whether a call is no part of a model: it logs, or Python calls it at any time, as it collects garbage."""
    collecting = {getattr(each, "__code__", None) for each in gc.callbacks}
    while frame is not None:
        code = frame.f_code
        if code in collecting or code.co_name == "__del__" or code.co_filename == logging.__file__:
            return True
        frame = frame.f_back
    return False


@functools.cache
def is_quiet(file: str) -> bool:
    return file.startswith(QUIET) or (file.startswith(STANDARD) and "-packages" not in file)


def _is_container(method: Argument) -> bool:
    return type(getattr(method, "__self__", None)).__module__ in ("builtins", "collections")


@functools.lru_cache(1024)
def _stores(code: CodeType) -> str:
    """What a function may change that is not its own, in words."""
    for step in dis.get_instructions(code):
        outside = step.opname == "STORE_DEREF" and step.argval in code.co_freevars
        is_own = code.co_name == "__init__" and step.opname == "STORE_ATTR"
        if (step.opname in STORES and not is_own) or outside:
            place = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
            return f"{code.co_name} ({place}) may change what Python has"
    return ""
