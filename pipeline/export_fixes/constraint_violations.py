"""Find a model's conditions on sizes beyond their ranges with one export: torch.export raises an error for a range that
is wider than the model accepts, but only after tracing the whole model."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import sympy
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from pipeline.aten.types import Argument
from pipeline.export_fixes.error_attribution import FIXES, NOT_THE_MODELS, place_of
from pipeline.export_fixes.interrupts import set_to

_kept: ContextVar[list[ConstraintViolationError] | None] = ContextVar("violations", default=None)


def collected_violations() -> AbstractContextManager[list[ConstraintViolationError]]:
    """Return a context in which an export finishes although ranges are too wide; the list receives the errors."""
    return set_to(_kept, [])


def finishing(own: Callable[..., object]) -> Callable[..., object]:
    """Wrap `produce_guards_and_solve_constraints` to keep an error instead of raising it, where requested."""

    def produce_guards_and_solve_constraints(fake_mode: Any, *args: object, **kwargs: object) -> Argument:
        try:
            return own(fake_mode, *args, **kwargs)
        except ConstraintViolationError as error:
            kept = _kept.get()
            if kept is None or fake_mode.shape_env.dim_constraints is None:  # it gave up at the first
                raise
            words, *fixes = str(error).partition(FIXES)  # which torch reads from the message
            kept.append(type(error)("".join((words, _fixing_lines(fake_mode.shape_env), *fixes))))

    return produce_guards_and_solve_constraints


def _fixing_lines(shape_env: Any) -> str:
    """Return the lines of the model that fix a size to its value in the example, as lines of a message."""
    found: dict[str, None] = {}
    for guard in shape_env.guards:
        sides = guard.expr.args if isinstance(guard.expr, sympy.Eq) else ()
        frame = getattr(guard.sloc, "framework_loc", None)
        if not isinstance(frame, traceback.FrameSummary) or not any(side.is_Integer for side in sides):
            continue
        if not frame.filename.startswith(NOT_THE_MODELS):
            found[place_of(frame.filename, frame.lineno or 0)] = None
    places = "".join(f"\n  - {place}" for place in found)
    why = "The model makes numbers of sizes, or compares them with numbers, which it may keep from its last call:"
    return f"\n{why}{places}" if places else ""
