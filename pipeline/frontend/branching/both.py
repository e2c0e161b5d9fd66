"""What a function that is written anew calls while it is traced: both branches run, and data chooses.

A branch that is not taken must leave nothing behind. While one is traced whose test is open, it is noted if it writes
to what was there before, draws, reads data, or changes lists and attributes; then there is no program.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import partial
from typing import ClassVar, Final

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols as free_symbols
from torch.utils._pytree import tree_flatten, tree_unflatten

from pipeline.aten.types import Argument
from pipeline.errors import CaptureError
from pipeline.frontend.branching import effects
from pipeline.frontend.branching.counts import Rows, counted_dim
from pipeline.frontend.data_checks import is_unknown
from pipeline.shapes.environment import shape_of

HINT: Final = "torch.where(condition, one, other) has both ways, torch.cond runs one of them"

HALVES: Final = (torch.float16, torch.bfloat16)


class Unset:
    """What a name is that a branch does not set."""

    def __repr__(self) -> str:
        return "not set"


UNSET: Final = Unset()


def is_open(test: object) -> bool:
    """Whether only data has the truth of a test, and both answers are traced."""
    return _is_of_data(test) and not effects.takes_the_example()


def _is_of_data(test: object) -> bool:
    """Whether a value is a tensor of one element that only data has."""
    return effects.is_traced() and isinstance(test, torch.Tensor) and is_unknown(test) and set(shape_of(test)) <= {1}


def number(value: Argument) -> Argument:
    """A number that only data has, as a tensor of one element; else the value."""
    if not _is_read(value) or effects.takes_the_example():
        return value
    source = effects.source_of(value)
    if source is not None:
        return source.reshape(()).float() if source.dtype in HALVES else source.reshape(())
    dtype = torch.int64 if isinstance(value, torch.SymInt) else torch.float32
    return torch.full((), value, dtype=dtype)


def length(value: Argument) -> Argument:
    """``len(value)``, which may be a size that only data has."""
    rows = value.shape[0] if effects.is_traced() and isinstance(value, torch.Tensor) and value.dim() else None
    return rows if isinstance(rows, torch.SymInt) and free_symbols(rows) else len(value)


def whole(value: Argument) -> Argument:
    """``int(value)``, which may be a number that only data has."""
    if _is_of_data(value):
        value = (value.long() if value.dtype == torch.bool else value).item()
    return torch.sym_int(value) if _is_read(value) else int(value)


def real(value: Argument) -> Argument:
    """``float(value)``, which may be a number that only data has."""
    if _is_of_data(value):
        value = (value.long() if value.dtype == torch.bool else value).item()
    return torch.sym_float(value) if _is_read(value) else float(value)


def _is_read(value: object) -> bool:
    """Whether a number is data's."""
    is_number = effects.is_traced() and isinstance(value, torch.SymInt | torch.SymFloat)
    return is_number and bool(free_symbols(value))


def negation(test: Argument) -> object:
    """``not test``"""
    test = number(test)
    return torch.logical_not(test) if is_open(test) else not test


def both(*tests: Callable[[], Argument]) -> object:
    """``a and b and c``: a test is asked unless one before it is known to be false."""
    return _joined(tests, torch.logical_and, stops=False)


def any_of(*tests: Callable[[], Argument]) -> object:
    """``a or b or c``: a test is asked unless one before it is known to be true."""
    return _joined(tests, torch.logical_or, stops=True)


def _joined(tests: Sequence[Callable[[], Argument]], join: Callable[..., Argument], stops: bool) -> object:
    found: Argument = None
    for ask in tests:
        if found is None:
            test = number(ask())
        else:
            made = effects.Made(taken=partial(_goes_on, found, stops))
            with effects.NoneIn("in a test that is asked only if one before it leaves it open", HINT, made):
                test = number(ask())
        if is_open(test):
            found = test if found is None else join(found.reshape(()), test.reshape(()))
        elif bool(test) == stops:
            return test  # whatever the others are
        else:
            last = test
    return last if found is None else found


def _goes_on(found: torch.Tensor, stops: bool) -> torch.Tensor:
    """Whether another test is asked after those that are joined."""
    return (found.reshape(()) != 0) ^ stops


def item(value: Argument) -> object:
    """``value.item()`` in a test, which may as well be a tensor."""
    return value if is_open(value) else value.item()


def in_test(read: Callable[[Argument], Argument], value: Argument) -> object:
    """``int(value)`` or ``float(value)`` in a test, which may as well be a tensor."""
    if not is_open(value):
        return read(value)
    return value.trunc() if read is whole and value.is_floating_point() else value


def truth(value: Argument) -> object:
    """``bool(value)`` in a test."""
    value = number(value)
    return value if is_open(value) else bool(value)


def tensor(value: Argument) -> Argument:
    """The tensor that a branch changes: ``x[:, 0] = 1``, ``self.calls += 1``.

    Raises:
        CaptureError: it is a number, a list or the like, and the branch may not be taken.
    """
    if effects.is_open_branch() and not isinstance(value, torch.Tensor):
        why = f"a branch that data decides changes a {type(value).__name__}"
        raise effects.refused(f"{why}: it may not be taken, and must leave nothing behind", HINT)
    return value


def either(test: Argument, yes: Callable[[], Argument], no: Callable[[], Argument], place: str) -> object:
    """``yes if test else no``"""
    test = number(test)
    if not is_open(test):
        return yes() if test else no()
    choice = Choice(test, place, {}, ("the value",), ("the value",))
    for way, value in ((True, yes), (False, no)):
        with choice.branch(way):
            found = value()
        choice.ends(way, {"the value": found})
    return choice.merged()[0]


class Choice:
    """A choice between two branches.

    Attributes:
        is_open: whether only data has it. Then both branches are traced; else one of them runs, and nothing is done.
        before: what the names were that the branches set.
    """

    part: ClassVar[str] = "a branch of the if"

    def __init__(
        self, test: Argument, place: str, values: Mapping[str, Argument], names: Sequence[str], kept: Sequence[str]
    ) -> None:
        test = number(test)
        self.is_open = is_open(test)
        self.test: Argument = test.reshape(()) != 0 if self.is_open else bool(test)  # a branch may write to the tensor
        self.place, self.names, self.kept = place, names, frozenset(kept)
        self.before = tuple(values.get(name, UNSET) for name in names) if self.is_open else ()
        self._held = [(v, copy(v)) for v in values.values() if isinstance(v, list | dict | set)] if self.is_open else []
        self._after: dict[bool, tuple[Argument, ...]] = {}
        self._made: dict[bool, effects.Made] = {}
        self._rows = Rows(self.test)

    def runs(self, way: bool) -> bool:
        """Whether a branch runs."""
        return self.is_open or self.test == way

    def branch(self, way: bool) -> AbstractContextManager[object]:
        """A context of a branch."""
        if not self.is_open:
            return nullcontext()
        self._made[way] = effects.Made(undoes=True, taken=lambda: self.test == way)
        return effects.NoneIn(f"in {self.part} at {self.place}, which data decides", HINT, self._made[way])

    def ends(self, way: bool, values: Mapping[str, Argument]) -> None:
        """Take what a branch has set, and write back what it has written where it is not taken.

        Raises:
            CaptureError: it has changed a list, dict or set of the function's (``parts += [x]``).
        """
        if self.is_open:
            for tensor, before in reversed(self._made[way].written):
                tensor.copy_(torch.where(self.test == way, tensor, before))
            self._after[way] = tuple(values.get(name, UNSET) for name in self.names)
            changed = next((type(now).__name__ for now, before in self._held if not _is_as_before(now, before)), "")
            if changed:
                why = f"{self.part} at {self.place}, which data decides, changes a {changed}"
                raise effects.refused(f"{why}: it may not be taken, and must leave nothing behind", HINT)

    def undo(self, way: bool) -> None:
        """Leave a branch out, which looks up what there is not.

        Raises:
            CaptureError: it has left something behind before.
        """
        made = self._made[way]
        if made.effect:
            why = f"in {self.part} at {self.place}, which data decides, {made.effect}"
            raise effects.refused(f"{why}: it may not be taken, and must leave nothing behind", HINT)
        for tensor, before in reversed(made.written):
            tensor.copy_(before)
        self._after[way] = self.before

    def merged(self) -> tuple[Argument, ...]:
        """What the names are after the branches.

        Raises:
            CaptureError: data would choose between what is no tensor, or between tensors of two kinds.
        """
        rows = zip(self.names, self._after[True], self._after[False], strict=True)
        return tuple(self._one(name, yes, no) if name in self.kept else UNSET for name, yes, no in rows)

    def _one(self, name: str, yes: Argument, no: Argument) -> Argument:
        (ours, spec), (theirs, other) = tree_flatten(yes), tree_flatten(no)
        if yes is UNSET and no is UNSET:
            return UNSET
        if spec != other or yes is UNSET or no is UNSET:
            raise self._error(name, _kind(yes), _kind(no))
        return tree_unflatten([self._leaf(name, a, b) for a, b in zip(ours, theirs, strict=True)], spec)

    def _leaf(self, name: str, yes: Argument, no: Argument) -> Argument:
        """One of two values. What a part of a script leaves unset is not read after it."""
        if yes is no or no is UNSET or _is_same_number(yes, no):
            return yes
        if yes is UNSET:
            return no
        yes, no = self._flag(name, yes), self._flag(name, no)
        if not isinstance(yes, torch.Tensor) or not isinstance(no, torch.Tensor):
            raise self._error(name, _kind(yes), _kind(no))
        if _facts(yes) == _facts(no):
            chosen = torch.where(self.test, yes, no)
        elif (dim := counted_dim(yes, no)) is not None and not effects.is_of_one_size():
            chosen = self._rows.chosen(yes, no, dim)
        else:
            raise self._error(name, _kind(yes), _kind(no))
        shared = [t for t, way in ((yes, True), (no, False)) if t not in self._made[way]]
        effects.keep(chosen, shared, f"the if at {self.place} chose by data, or chose from")
        return chosen

    def _flag(self, name: str, value: Argument) -> Argument:
        """Whether a loop has ended, as a tensor."""
        if not name.startswith("_pipeline_stopped") or not isinstance(value, bool):
            return value
        return torch.full((), value, device=self.test.device)

    def _error(self, name: str, yes: str, no: str) -> CaptureError:
        what = "what it returns" if name.startswith("_pipeline") else name
        why = f"data decides {self.part.partition(' of ')[2]} at {self.place}, after which {what} is {yes} or {no}"
        return effects.refused(f"{why}: programs have tensors of one kind", HINT)


def _is_as_before(now: Argument, before: Argument) -> bool:
    """Whether a container has what its copy has."""
    if isinstance(now, dict):
        now, before = ([*each.keys(), *each.values()] for each in (now, before))
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _facts(tensor: torch.Tensor) -> object:
    return shape_of(tensor), tensor.dtype, tensor.device


def _is_same_number(a: object, b: object) -> bool:
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(a.node.expr == b.node.expr)
    return type(a) is type(b) and isinstance(a, int | float | str | torch.dtype | torch.device) and a == b


def _kind(value: object) -> str:
    if isinstance(value, torch.Tensor):
        sizes = ", ".join(map(str, shape_of(value)))
        return f"{str(value.dtype).removeprefix('torch.')}[{sizes}]"
    if isinstance(value, tuple | list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    return str(value)[:40]
