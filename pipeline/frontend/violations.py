"""What a model asks of sizes beyond their ranges, found by one export: torch.export ends with an error where a range is
wider than the model takes, after it has traced all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from pipeline.aten.types import Argument

_kept: ContextVar[list[ConstraintViolationError] | None] = ContextVar("violations", default=None)


@contextmanager
def kept_violations() -> Iterator[list[ConstraintViolationError]]:
    """Within it an export is finished although ranges are too wide; the errors are in the list."""
    found: list[ConstraintViolationError] = []
    token = _kept.set(found)
    try:
        yield found
    finally:
        _kept.reset(token)


def finishing(own: Callable[..., object]) -> Callable[..., object]:
    """`produce_guards_and_solve_constraints`, of which an error is kept where somebody asked for it."""

    def produce_guards_and_solve_constraints(fake_mode: Any, *args: object, **kwargs: object) -> Argument:
        try:
            return own(fake_mode, *args, **kwargs)
        except ConstraintViolationError as error:
            kept = _kept.get()
            if kept is None or fake_mode.shape_env.dim_constraints is None:  # it gave up at the first
                raise
            kept.append(error)

    return produce_guards_and_solve_constraints
