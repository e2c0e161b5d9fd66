"""Watch a branch that may not be taken: what it leaves behind would be there whether it is taken or not."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import Final, TypeAlias

import sympy
import torch
from attrs import define, field
from torch._C import _functorch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from pipeline.aten.apart import why_apart
from pipeline.aten.types import Argument, Target
from pipeline.errors import CaptureError
from pipeline.frontend.branching.counts import enough, enough_to_index
from pipeline.frontend.branching.positions import Positions, Rows
from pipeline.frontend.branching.watching import is_quiet, resume, watching
from pipeline.frontend.replacement import Kernel
from pipeline.frontend.undoing import set_to

aten = torch.ops.aten

LOOKED_UP: Final = "a branch that data decides looks up"


Line: TypeAlias = tuple[CodeType, int]
"""A function, and a line of it."""


@define
class Made:
    """What a branch makes, and what it leaves behind.

    Attributes:
        taken: computes whether it is taken, if what is around it is.
        undoes: whether what it writes is written back where it is not taken.
        untaken: 1 if it is not taken, or what is around it, else 0; None until someone asks.
        memory: the memory of the tensors that it made.
        effect: what it leaves behind first, in words.
        written: tensors from before that it writes to, with copies, in order.
    """

    taken: Callable[[], torch.Tensor]
    undoes: bool = False
    untaken: torch.SymInt | None = None
    memory: set[StorageWeakRef] = field(factory=set)
    effect: str = ""
    written: list[tuple[torch.Tensor, torch.Tensor]] = field(factory=list)

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return _memory(tensor) in self.memory

    def is_undone(self, func: Target) -> bool:
        """Whether what an operator writes can be written back: it changes no sizes."""
        return self.undoes and torch.Tag.inplace_view not in func.tags

    def is_before(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is from before, and has not been written."""
        return tensor not in self and not any(tensor is known for known, _ in self.written)

    def take(self, inner: Made) -> None:
        """Take what a branch in this one has made, and the copies from before it wrote."""
        self.written += [(tensor, copy) for tensor, copy in inner.written if self.is_before(tensor)]
        self.memory |= inner.memory

    def note(self, func: Target, given: Argument, written: set[StorageWeakRef], result: object, *, valid: bool) -> None:
        """Note what a call leaves behind, and the memory that it makes; ``valid``: its positions are."""
        undone = self.is_undone(func) or bool(written and written <= self.memory)
        why = why_apart(func, given[0], result, undone=undone, valid=valid)
        self.effect = self.effect or (f"{func} {why}" if why else "")
        before = {_memory(t) for t in tree_leaves(given) if isinstance(t, torch.Tensor)}
        self.memory |= {_memory(t) for t in tree_leaves(result) if isinstance(t, torch.Tensor)} - before


@define
class Trace:
    """One trace of a model.

    Attributes:
        open: the branches that are traced at the moment, from the outer to the inner.
        kept: results of choices, with the memory that they would share with others had Python chosen, and what chose.
        refusal: why there is no program, which the model may have caught.
        asked: the functions, with their lines, that asked for a truth that only data has.
        positions: what is known of tensors of positions.
        read: the numbers that were read from data, with the tensors of one element that have them.
        by_example: whether the example decides, and no branch is open.
        is_aside: whether what is traced is not the model's.
        enough: what was looked up last has enough rows.
    """

    open: list[Made] = field(factory=list)
    kept: list[tuple[weakref.ref[torch.Tensor], frozenset[StorageWeakRef], str]] = field(factory=list)
    refusal: CaptureError | None = None
    asked: list[Line] = field(factory=list)
    positions: Positions = field(factory=Positions)
    read: dict[sympy.Expr, torch.Tensor] = field(factory=dict)
    by_example: bool = False
    is_aside: bool = False
    enough: torch.Tensor | None = None

    @property
    def branch(self) -> Made | None:
        """The branch of which what is traced is a part."""
        return self.open[-1] if self.open and not self.is_aside else None

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A context of what is not the model's."""
        self.is_aside = True
        try:
            yield
        finally:
            self.is_aside = False

    def untaken(self) -> torch.SymInt:
        """1 if the branch that is traced is not taken, else 0."""
        made = self.open[-1]
        if made.untaken is None:
            with self.aside():  # what is asked is ours, and leaves nothing behind
                taken = functools.reduce(torch.logical_and, [each.taken() for each in self.open])
                found: Argument = torch.logical_not(taken).long().item()
            torch._check(found >= 0)
            torch._check(found <= 1)
            made.untaken = found
        return made.untaken


_fixed: ContextVar[bool] = ContextVar("whether branches leave as many rows", default=False)
_trace: ContextVar[Trace | None] = ContextVar("a trace of both branches", default=None)


def of_one_size(fixed: bool) -> AbstractContextManager[bool]:
    """A context in which branches have to leave as many rows; unless ``fixed``, data may choose how many there are."""
    return set_to(_fixed, fixed)


def is_of_one_size() -> bool:
    """Whether branches have to leave as many rows."""
    return _fixed.get()


@contextmanager
def traced(*, by_example: bool = False) -> Iterator[Trace]:
    """A context of one trace in which branches may be open, or the example decides.

    Raises:
        CaptureError: what a branch does was refused, and the model caught the error.
    """
    with set_to(_trace, Trace(by_example=by_example)) as trace:
        yield trace
    if trace.refusal is not None:
        raise trace.refusal


def refused(why: str, hint: str) -> CaptureError:
    """The error for what cannot be in a program, which stands whether or not the model catches it."""
    error, trace = CaptureError(why, hint), _trace.get()
    if trace is not None:
        trace.refusal = trace.refusal or error
    return error


def asked(truth: Callable[..., Argument], frame: FrameType | None) -> Callable[..., object]:
    """Wrap what gives the truth of a tensor in a frame, to note that it has none: the model may catch the error."""

    def noted(*args: object, **kwargs: object) -> object:
        try:
            return truth(*args, **kwargs)
        except GuardOnDataDependentSymNode:
            trace, at = _trace.get(), frame
            while at is not None and is_quiet(at.f_code.co_filename):
                at = at.f_back
            if trace is not None and at is not None:
                trace.asked.append((at.f_code, at.f_lineno))
            raise

    return noted


def is_open_branch() -> bool:
    """Whether a branch is traced that may not be taken."""
    trace = _trace.get()
    return trace is not None and bool(trace.open)


def is_traced() -> bool:
    """Whether branches may be open."""
    return _trace.get() is not None


def takes_the_example() -> bool:
    """Whether the example decides what only data has."""
    trace = _trace.get()
    return trace is not None and trace.by_example


def rows_of(tensor: torch.Tensor) -> Rows | None:
    """The rows that a tensor of as many rows as data says can have; None if that is not known."""
    trace = _trace.get()
    return None if trace is None else trace.positions.rows(tensor)


def source_of(number: torch.SymInt | torch.SymFloat) -> torch.Tensor | None:
    """The tensor that a number was read from, if it still has it."""
    trace = _trace.get()
    return None if trace is None else trace.read.get(number.node.expr)


@define
class NoneIn:
    """A context that may be left out of the program: it must leave nothing behind.

    Args:
        what: it, in words.
        hint: how to go on where it does.
        made: what it makes.

    Raises:
        CaptureError: it does; the message says what.
    """

    what: str
    hint: str
    made: Made
    _before: Argument = field(init=False, default=None)

    def __enter__(self) -> Made:
        """Watch what is done from here on."""
        trace = _trace.get()
        if trace is not None:
            trace.open.append(self.made)
            self._before = sys.getprofile()
            sys.setprofile(watching(self.made))
        return self.made

    def __exit__(self, kind: object, *_: object) -> None:
        """Say what was done."""
        trace = _trace.get()
        if trace is None:
            return
        resume(self._before)
        trace.open.pop()
        if kind is None and self.made.effect:
            why = f"{self.what}, {self.made.effect}: it may not be taken, and must leave nothing behind"
            raise refused(why, self.hint)
        if trace.open:
            trace.open[-1].take(self.made)


def keep(chosen: torch.Tensor, shared: Sequence[torch.Tensor], what: str) -> None:
    """Note the result of a choice, and the tensors from before of which it would be one had Python chosen: to write to
    one of them would write to the other."""
    trace = _trace.get()
    if trace is not None and shared:
        memory = frozenset(map(_memory, (chosen, *shared)))
        trace.kept.append((weakref.ref(chosen), memory, what))


def noting(own: Kernel) -> Kernel:
    """Wrap torch's tracing of a call, to note what it does to a branch that is open."""

    def proxy_call(mode: Argument, func: Target, pre_dispatch: bool, args: Argument, kwargs: Argument) -> object:
        trace = _trace.get()
        if trace is None:
            return own(mode, func, pre_dispatch, args, kwargs)
        given = args
        if trace.branch is not None and not any(arg is trace.enough for arg in args[:1]):
            with mode:
                args = enough(func, args, kwargs or {}, trace.untaken)
        written = list(_written(func, args, kwargs or {}))
        branch = trace.branch
        if branch is not None and branch.is_undone(func):
            for tensor in filter(branch.is_before, written):
                branch.written.append((tensor, own(mode, aten.clone.default, pre_dispatch, (tensor,), {})))
        valid = branch is not None and trace.positions.are_valid(func, args, kwargs or {})
        result = own(mode, func, pre_dispatch, args, kwargs)
        memory = set(map(_memory, written))
        for chosen, shared, place in trace.kept:
            if memory & shared and chosen() is not None:
                why = f"the model writes in place to what {place}"
                raise refused(why, "write to a clone: which of two tensors is written is for data to say")
        if memory:
            trace.positions.forget(lambda tensor: _memory(tensor) in memory)
            trace.read = {number: tensor for number, tensor in trace.read.items() if _memory(tensor) not in memory}
        trace.positions.note(func, args, kwargs or {}, result)
        if func is aten.item.default and isinstance(result, torch.SymInt | torch.SymFloat):
            trace.read[result.node.expr] = args[0]
        if branch is not None and func is aten.select.int and args[0] is not given[0]:
            keep(result, given[:1], LOOKED_UP)
        if branch is not None:
            branch.note(func, (args, kwargs), memory, result, valid=valid)
        return result

    return proxy_call


def indexing(override: Callable[..., object]) -> Callable[..., object]:
    """Wrap torch.export's handling of a call in the model: rows that a branch looks up, of which there may be none."""

    def override_rows(self: Argument, func: Target, args: Argument, kwargs: Argument) -> object:
        trace = _trace.get()
        if trace is None or trace.branch is None or getattr(func, "__name__", "") != "__getitem__":
            return override(self, func, args, kwargs)
        tensor, index = enough_to_index(args[0], args[1], trace.untaken)
        if tensor is args[0]:
            return override(self, func, args, kwargs)

        def looked_up(*_: Argument) -> object:
            trace.enough = tensor
            result = func(tensor, index)
            keep(result, args[:1], LOOKED_UP)
            return result

        return looked_up, args, kwargs

    return override_rows


def _written(func: Target, args: Argument, kwargs: Mapping[str, Argument]) -> Iterator[torch.Tensor]:
    """The tensors that a call writes to."""
    if func._schema.is_mutable:
        for argument, value in (*zip(func._schema.arguments, args, strict=False), *_named(func, kwargs)):
            if argument.alias_info is not None and argument.alias_info.is_write:
                yield from (tensor for tensor in tree_leaves(value) if isinstance(tensor, torch.Tensor))


def _named(func: Target, kwargs: Mapping[str, Argument]) -> Iterator[tuple[Argument, Argument]]:
    return ((argument, kwargs[argument.name]) for argument in func._schema.arguments if argument.name in kwargs)


def _memory(tensor: torch.Tensor) -> StorageWeakRef:
    while _functorch.is_functorch_wrapped_tensor(tensor):  # by torch.vmap: it has none of its own
        tensor = _functorch.get_unwrapped(tensor)
    return StorageWeakRef(tensor.untyped_storage())
