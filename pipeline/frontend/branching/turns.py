"""What a loop is that is written anew, whose turns data chooses: ``for i in hit.nonzero()``.

Each turn that there may be is traced, with a number that is known, and data chooses whether it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, Final

import torch
from attrs import define
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pipeline.aten.types import Argument
from pipeline.frontend.branching import effects
from pipeline.frontend.branching.both import Choice, negation
from pipeline.frontend.known_numbers import number_of

MOST: Final = 1024
"""Turns that are traced of one loop, each of them or none."""

LONGEST: Final = 128
"""Turns that are traced of one loop that data may end."""

HINT: Final = "go over range(n), and let torch.where choose what a turn changes"


KNOWN: Final = "turns are known that go over v.nonzero(), v a vector of a fixed size, or over positions.unique()"


@define(eq=False)
class Turn:
    """A turn of a loop.

    Attributes:
        test: whether there is one: true, or a tensor of one element.
        value: what it is given.
        error: why there is none, whatever the data.
    """

    test: Argument
    value: Argument
    error: Exception | None = None

    def unless(self, stopped: Argument) -> Turn:
        """The turn, if the loop has not ended."""
        if stopped is not False:
            going: Argument = negation(stopped)
            self.test = going if self.test is True else torch.logical_and(self.test.reshape(()) != 0, going)
        return self


def turns(values: Argument, listed: bool, place: str) -> Iterator[Turn]:
    """The turns that there may be; ``listed``: over ``values.tolist()``.

    Raises:
        CaptureError: it is not known which, or there are too many.
        IndexError, KeyError: none of them has what it looks up.
    """
    if not _is_open(values):
        yield from _each(values.tolist() if listed else values, place)
        return
    rows = effects.rows_of(values)
    if rows is None or rows.count > MOST:
        much = "it is not known for which rows" if rows is None else f"as often as {rows.count} times"
        why = f"the loop at {place} has as many turns as data says, {much}"
        raise effects.refused(f"{why}: {KNOWN}", HINT)
    hit, failed = rows.hit(), list[Exception]()
    for i in range(rows.count):
        value: Argument = torch.full(values.shape[1:], i, dtype=values.dtype, device=values.device)
        for _ in range(value.dim() if listed else 0):
            value = [i] if not isinstance(value, list) else [value]
        turn = Turn(hit[i], i if listed and not isinstance(value, list) else value)
        yield turn
        failed += [] if turn.error is None else [turn.error]
    if failed and len(failed) == rows.count:
        raise failed[0]


def _each(values: Argument, place: str) -> Iterator[Turn]:
    """A turn for each of the values; data may end the loop."""
    ends = 0
    for value in values:
        turn = Turn(True, value)
        yield turn
        ends += turn.test is not True
        if ends > LONGEST:
            raise effects.refused(f"the loop at {place} has more than {LONGEST} turns, any of which data may end", HINT)


def has_ended(stopped: object) -> bool:
    """Whether a loop has ended, whatever the data."""
    return stopped is True


def all_of(values: Argument, place: str) -> Argument:
    """What a loop goes over that is not written anew.

    Raises:
        CaptureError: data chooses its turns.
    """
    if _is_open(values):
        why = f"the loop at {place} has as many turns as data says, and does more than set names"
        raise effects.refused(f"{why} (break, return, attributes)", HINT)
    return values


def shown(value: Argument) -> object:
    """What a text has of a value: the number of a turn, where that is one."""
    number = number_of(value) if isinstance(value, torch.Tensor) and value.dim() == 0 else None
    return number if isinstance(number, int) else value


class Once(Choice):
    """A turn, which data chooses or not. One that looks up what there is not is left out: the model fails there."""

    part: ClassVar[str] = "a turn of the loop"

    def __init__(
        self, turn: Turn, place: str, values: Mapping[str, Argument], names: Sequence[str], kept: Sequence[str]
    ) -> None:
        super().__init__(turn.test, place, values, names, kept)
        self.turn = turn

    @contextmanager
    def branch(self, way: bool) -> Iterator[None]:
        """A context of the turn, or of what there is without it."""
        try:
            with super().branch(way):
                yield
        except (IndexError, KeyError) as error:
            if not (self.is_open and way):
                raise
            self.turn.error = error

    def ends(self, way: bool, values: Mapping[str, Argument]) -> None:
        """Take what a turn has set."""
        if way and self.turn.error is not None:
            self.undo(way)
        else:
            super().ends(way, values)


def _is_open(values: object) -> bool:
    """Whether only data has how many there are, and each that there may be is traced."""
    if not effects.is_traced() or effects.takes_the_example():
        return False
    if not isinstance(values, torch.Tensor) or not values.dim():
        return False
    return isinstance(values.shape[0], torch.SymInt) and bool(free_unbacked_symbols(values.shape[0]))
