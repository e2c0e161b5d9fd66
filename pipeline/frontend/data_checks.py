"""Take a model's checks of its data to hold: ``assert (x >= 0).all()`` and ``if x.isnan().any(): raise ValueError``.

torch.export fails where Python asks for a truth that only data has. Where one of the two answers leads to nothing but
an error, the graph for the other is the model's, for all inputs that the model takes. What was asked is collected, so
that the user is told that engines do not check it.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import torch
from attrs import define, field
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram

from pipeline.aten.types import Argument, Target
from pipeline.errors import line_of

aten = torch.ops.aten

TORCH: Final = str(Path(torch.__file__).parent)
EXPORT: Final = str(Path(torch.export.__file__).parent)
OURS: Final = str(Path(__file__).parent)
LONGEST: Final = 80
"""Instructions before an error is raised: its message may be long."""
ENDS: Final = ("JUMP", "RETURN", "FOR_ITER", "YIELD", "SEND", "RERAISE")
LEAVES: Final = ("STORE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR", "STORE_DEREF", "DELETE")
"""What leaves something behind, also if an error is raised."""


@define
class Checks:
    """What a model checks of its data.

    Attributes:
        places: where checks were taken to hold, as ``file:line``.
        caught: one was met whose error the model may catch. Dynamo takes it to hold nevertheless.
    """

    places: dict[str, None] = field(factory=dict)
    caught: bool = False


_checks: ContextVar[Checks | None] = ContextVar("checks of data", default=None)


@contextmanager
def collected() -> Iterator[Checks]:
    """A context that collects the checks of models that are exported in it."""
    found = Checks()
    token = _checks.set(found)
    try:
        yield found
    finally:
        _checks.reset(token)


def asserted(exported: ExportedProgram) -> Iterator[str]:
    """The assertions on data in an exported graph, in words; programs leave them out."""
    for node in exported.graph.nodes:
        if node.target in (aten._assert_async.default, aten._assert_async.msg):
            yield line_of(node.meta).partition(",")[0] or node.name


def holding(override: Callable[..., object]) -> Callable[..., object]:
    """Wrap torch.export's handling of a call in the model: the truth of a tensor that only a check asks for."""

    def override_truths(self: Argument, func: Target, args: Argument, kwargs: Argument) -> object:
        if args and (getattr(func, "__name__", "") == "__bool__" or func is torch._assert) and _is_unknown(args[0]):
            truth = _taken(sys._getframe(1), is_check=func is torch._assert)
            if truth is not None:
                return lambda *_, **__: truth, args, kwargs
        return override(self, func, args, kwargs)

    return override_truths


def _is_unknown(tensor: object) -> bool:
    """Whether only data has the value of a tensor."""
    if not isinstance(tensor, torch.Tensor) or getattr(tensor, "item_memo", None) is not None:
        return False
    return isinstance(tensor, FakeTensor) and tensor.constant is None


def _taken(frame: FrameType | None, is_check: bool) -> bool | None:
    """The truth that a check asks for, which is noted; None if it is no check."""
    checks = _checks.get()
    while frame is not None and _is_not_the_models(frame):
        frame = frame.f_back
    needed = True if is_check or frame is None else _needed(frame.f_code, frame.f_lasti)
    if needed is None or checks is None or frame is None:
        return None
    outer: list[FrameType] = []
    while frame is not None and not frame.f_code.co_filename.startswith(EXPORT):
        outer += [] if _is_not_the_models(frame) else [frame]
        frame = frame.f_back
    if any(_is_caught(each.f_code, each.f_lasti) for each in outer):
        checks.caught = True
        return None
    checks.places.update({f"{Path(each.f_code.co_filename).name}:{each.f_lineno}": None for each in outer[:1]})
    return needed


def _is_not_the_models(frame: FrameType) -> bool:
    """Whether a frame is of torch or of ours."""
    return frame.f_code.co_filename.startswith((TORCH, OURS))


@functools.lru_cache(1024)
def _needed(code: CodeType, at: int) -> bool | None:
    """The truth without which the code after an instruction raises an error, and does nothing else; None if there is
    no such truth."""
    steps = list(dis.get_instructions(code))
    place = next((i for i, step in enumerate(steps) if step.offset == at), len(steps))
    while place < len(steps) and steps[place].opname in ("TO_BOOL", "CACHE"):
        place += 1
    if place >= len(steps) - 1 or "JUMP" not in steps[place].opname or "_IF_" not in steps[place].opname:
        return None
    jump = steps[place]
    if_true = jump.opname.endswith("IF_TRUE")
    if not if_true and not jump.opname.endswith("IF_FALSE"):
        return None
    target = next(i for i, step in enumerate(steps) if step.offset == jump.argval)
    by_jump, onward = _raises(steps, target), _raises(steps, place + 1)
    if by_jump == onward:
        return None
    return if_true if onward else not if_true


def _raises(steps: Sequence[dis.Instruction], place: int) -> bool:
    """Whether nothing comes of the instructions from a place on but an error."""
    for step in steps[place : place + LONGEST]:
        if step.opname == "RAISE_VARARGS":
            return True
        if any(end in step.opname for end in ENDS) or step.opname.startswith(LEAVES):
            return False
    return False


@functools.lru_cache(1024)
def _is_caught(code: CodeType, at: int) -> bool:
    """Whether a function may catch an error at a place; a ``with`` only leaves its context."""
    entries = getattr(dis.Bytecode(code), "exception_entries", ())
    handlers = [entry.target for entry in entries if entry.start <= at < entry.end]
    names = {step.offset: step.opname for step in dis.get_instructions(code)}
    return any(not _only_leaves(names, handler) for handler in handlers)


def _only_leaves(names: dict[int, str], handler: int) -> bool:
    """Whether a handler leaves the context of a ``with``, or hands the error on at once."""
    after = [name for offset, name in sorted(names.items()) if offset >= handler and name not in ("CACHE", "NOP")]
    return after[:2] == ["PUSH_EXC_INFO", "WITH_EXCEPT_START"] or after[:3] == ["COPY", "POP_EXCEPT", "RERAISE"]
