"""Find a model's conditions on sizes beyond their ranges with one export: torch.export raises an error for a range that
is wider than the model accepts, but only after tracing the whole model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from pipeline.aten.types import Argument
from pipeline.frontend.undoing import set_to

_kept: ContextVar[list[ConstraintViolationError] | None] = ContextVar("violations", default=None)


def kept_violations() -> AbstractContextManager[list[ConstraintViolationError]]:
    """A context in which an export finishes although ranges are too wide; the list receives the errors."""
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
            kept.append(error)

    return produce_guards_and_solve_constraints
