"""Export a model that decides by data: its functions that do are written anew, and it is exported again."""

from __future__ import annotations

import gc
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import TypeVar

from attrs import define, field
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from pipeline.errors import CaptureError
from pipeline.frontend import decisions
from pipeline.frontend.blame import deciding
from pipeline.frontend.branching import effects
from pipeline.frontend.branching.rewriting import rewritten
from pipeline.frontend.decisions import Decisions
from pipeline.frontend.undoing import undoing

log = logging.getLogger(__name__)
T = TypeVar("T")


def with_both_branches(export: Callable[[], T]) -> T:
    """Export. Where a function decides by data, both its branches are traced, and data chooses between the results.

    Functions have their own code again when it is done. What they compute meanwhile in other threads is as ever.

    Raises:
        GuardOnDataDependentSymNode: data decides, and both branches cannot be computed; its cause says why, if it is
            known.
        CaptureError: the same, and the model catches that error.
    """
    functions, first = Functions(), None
    with undoing(functions.restore):
        while True:
            try:
                with effects.traced() as trace:
                    exported = export()
                if not trace.asked:
                    return exported
                if not functions.rewrite(trace.asked[0]):
                    raise _caught(trace.asked[0])
            except GuardOnDataDependentSymNode as error:
                first = first or error
                if not functions.rewrite(deciding(error)):
                    raise
            except CaptureError as refusal:
                if first is None:
                    raise
                raise first from refusal


def with_the_examples_ways(export: Callable[[], T]) -> tuple[T, Decisions]:
    """Export, and what the example has decided. Functions that make a number of what data has (``float``, ``len``) are
    written anew, so that what is decided is what they compare, and not the number."""
    functions = Functions()
    with undoing(functions.restore):
        while True:
            with decisions.collected() as found, effects.traced(by_example=True):
                exported = export()
            rewritten = {line for line in found.numbers if functions.rewrite(line)}
            if not rewritten:
                return exported, found


def _caught(line: effects.Line) -> CaptureError:
    place = f"{Path(line[0].co_filename).name}:{line[1]}"
    why = f"the model decides by data at {place}, and catches torch.export's error: a program would have its way alone"
    return CaptureError(why, "torch.where(condition, one, other) has both ways, torch.cond runs one of them")


def _users(code: CodeType) -> Iterator[FunctionType]:
    """The functions that have a code: those that the garbage collector knows, or, of what it was told to leave out
    (``gc.freeze``, as servers do before they fork), the one that modules and classes have under its name."""
    found = [f for f in gc.get_referrers(code) if isinstance(f, FunctionType)]
    if gc.get_freeze_count():
        for module in [each for each in sys.modules.values() if getattr(each, "__file__", "") == code.co_filename]:
            value: object = module
            for name in code.co_qualname.split("."):
                value = inspect.getattr_static(value, name, None)
            found += _inside(value)
    yield from {id(f): f for f in found if f.__code__ is code}.values()


def _inside(value: object) -> Iterator[FunctionType]:
    """The functions that a function, method or property is made of: decorators keep what they wrap."""
    while value is not None:
        if isinstance(value, FunctionType):
            yield value
        value = next(
            (v for n in ("__func__", "fget", "__wrapped__") if (v := getattr(value, n, None)) is not None), None
        )


@define
class Functions:
    """The functions that are written anew, with their own code, and all codes that were looked at."""

    own: list[tuple[FunctionType, CodeType]] = field(factory=list)
    seen: set[CodeType] = field(factory=set)

    def rewrite(self, found: effects.Line | None) -> bool:
        """Write the function anew that decides by data at a line; whether that is done."""
        if found is None or found[0] in self.seen:
            return False
        code, line = found
        made = rewritten(code, line)
        self.seen |= {code} if made is None else {code, made}
        if made is None:
            return False
        users = list(_users(code))
        if not users:
            return False
        for function in users:
            self.own.append((function, code))
            function.__code__ = made
        place = f"{Path(code.co_filename).name}:{line}"
        log.info("data decides in %s (%s): both branches are computed", code.co_name, place)
        return True

    def restore(self) -> None:
        """Give them their own code."""
        for function, code in self.own:
            function.__code__ = code
