"""Assume that a model's checks of values pass: ``assert (x >= 0).all()``, ``if x.isnan().any(): raise ValueError``.

torch.export fails at data-dependent Python branches. If one of the two branches only raises an error, the trace takes
the other branch, which is correct for all inputs that the model accepts. A warning lists these checks, since engines do
not perform them.
"""

from __future__ import annotations

import builtins
import dis
import functools
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Final

import torch
from attrs import define, field
from torch._subclasses.fake_tensor import FakeTensor

from pipeline.aten.types import Argument, Target
from pipeline.errors import CaptureError, package_folder
from pipeline.export_fixes.error_attribution import BRANCH_HINT, NOT_MODEL_CODE, source_line_text
from pipeline.export_fixes.interrupts import set_contextvar
from pipeline.export_fixes.patching import ModelCall
from pipeline.shapes import guard_provenance

EXPORT: Final = package_folder("torch.export")
LIBRARY_CODE: Final = (package_folder("torch"), package_folder("pipeline"))
STANDARD_LIBRARY: Final = sysconfig.get_path("stdlib")
CHECKING_CODE: Final = (package_folder("torch.distributions"), str(torch.nn.functional.__file__))
"""Files of torch whose value checks are treated like checks in the model's own code."""
CHECKING_FUNCTIONS: Final = (torch.nn.functional.gaussian_nll_loss,)
"""Functions of torch that check values, and that torch.export does not intercept."""
MAX_RAISE_STEPS: Final = 80
"""The maximum number of bytecode instructions from a branch to its ``raise``: building the message may take many."""
BRANCH_ENDS: Final = ("JUMP", "RETURN", "FOR_ITER", "YIELD", "SEND", "RERAISE")
SIDE_EFFECTS: Final = ("STORE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR", "STORE_DEREF", "DELETE")
"""Prefixes of the names of bytecode instructions with side effects."""


@define
class Checks:
    """The value checks in a model.

    Attributes:
        places: the locations of checks that were assumed to pass, as ``file:line``.
        caught: the location of a check whose error the model may catch; empty if there is none. Such a check cannot be
            assumed to pass. Dynamo would assume it, so it does not trace this model.
    """

    places: dict[str, None] = field(factory=dict)
    caught: str = ""


checks: ContextVar[Checks | None] = ContextVar("checks of data", default=None)
"""Collects the value checks of the model while it is exported; None at other times."""


@contextmanager
def reject_caught_errors() -> Iterator[None]:
    """Return a context for a trace of a model. Raise `CaptureError` if the model caught torch.export's error about a
    data-dependent branch: the program would always run the ``except`` branch."""
    errors: list[Exception] = []
    with set_contextvar(guard_provenance.data_dependent_errors, errors):
        yield
        for error in errors:
            frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
            for file, line in reversed(frames):
                is_pythons = file.startswith(STANDARD_LIBRARY) and "-packages" not in file
                if is_pythons or file.startswith((*NOT_MODEL_CODE, package_folder("sympy"))):
                    continue  # code there may ask for a value and go on without one
                why = "the branch at {} is data-dependent, and the model catches torch.export's error"
                raise CaptureError(why.format(source_line_text(file, line)), BRANCH_HINT)


def record_assumed_check(line: str) -> None:
    """Record the ``file:line`` of a value check that the trace assumes to pass."""
    if (found := checks.get()) is not None:
        found.places[line] = None


def assume_check(mode: AbstractContextManager[object], func: Target, args: Argument, kwargs: Argument) -> ModelCall:
    """Return the call to trace in place of ``bool(tensor)`` in a value check (``assert (x >= 0).all()``): a function
    that returns the bool with which the check passes. Other calls are unchanged."""
    if func in CHECKING_FUNCTIONS:
        return _trace_as_model_code(mode, func), args, kwargs
    if args and (getattr(func, "__name__", "") == "__bool__" or func is torch._assert) and is_data_dependent(args[0]):
        truth = _truth_that_passes_check(sys._getframe(1), is_check=func is torch._assert)
        if truth is not None:
            return lambda *_, **__: truth, args, kwargs
    return func, args, kwargs


def _trace_as_model_code(mode: AbstractContextManager[object], function: FunctionType) -> Callable[..., object]:
    """Return a copy of torch's ``function`` in whose body torch.export's ``mode`` intercepts calls, as in a model."""
    unhandled = {name: lambda *_: False for name in function.__globals__ if name.startswith("has_torch_function")}
    bare = FunctionType(function.__code__, {**function.__globals__, **unhandled}, function.__name__)
    bare.__defaults__, bare.__kwdefaults__ = function.__defaults__, function.__kwdefaults__

    def called(*args: object, **kwargs: object) -> object:
        with mode:
            return bare(*args, **kwargs)

    return called


def skip_dynamic_sample_check(orig: Callable[..., None], distribution: Argument, value: Argument) -> None:
    """Replace ``Distribution._validate_sample``: skip it for dynamic sizes, which it would assume to differ from 1."""
    sizes = (*distribution.batch_shape, *distribution.event_shape, *getattr(value, "shape", ()))
    if all(isinstance(size, int) for size in sizes):
        orig(distribution, value)


def is_data_dependent(tensor: object) -> bool:
    """Return whether a tensor is a fake tensor whose value is unknown during the trace."""
    if not isinstance(tensor, torch.Tensor) or getattr(tensor, "item_memo", None) is not None:
        return False
    return isinstance(tensor, FakeTensor) and tensor.constant is None


def _truth_that_passes_check(frame: FrameType | None, is_check: bool) -> bool | None:
    """Return the truth value with which a check in the model's code passes, and record the check's location. The code
    is at ``frame``, or at the first of its callers that is not torch's. Return None if the code is no check
    (``is_check``: it surely is one, ``torch._assert``), or the model may catch the check's error."""
    found = checks.get()
    while frame is not None and _is_library_frame(frame):
        frame = frame.f_back
    if found is None or frame is None:
        return None
    truth, error = (True, "AssertionError") if is_check else _required_truth(frame.f_code, frame.f_lasti)
    if truth is None:
        return None
    outer: list[FrameType] = []
    while frame is not None and not frame.f_code.co_filename.startswith(EXPORT):
        outer += [] if _is_library_frame(frame) else [frame]
        frame = frame.f_back
    own = next((each for each in outer if not each.f_code.co_filename.startswith(CHECKING_CODE)), outer[0])
    place = f"{Path(own.f_code.co_filename).name}:{own.f_lineno}"
    if any(_may_catch(each.f_code, each.f_lasti, error) for each in outer):
        found.caught = place
        return None
    found.places[place] = None
    return truth


def _is_library_frame(frame: FrameType) -> bool:
    """Return whether a frame runs code of torch or pipeline, except torch's files of value checks (`CHECKING_CODE`)."""
    name = frame.f_code.co_filename
    return name.startswith(LIBRARY_CODE) and not name.startswith(CHECKING_CODE)


@functools.lru_cache(1024)
def _required_truth(code: CodeType, offset: int) -> tuple[bool | None, str]:
    """Return (truth value, error's name) of a check, ``if x: raise ValueError``, whose conditional jump is at
    ``offset``: with this value it raises no error. Return (None, "") unless exactly one branch only raises an error."""
    steps = list(dis.get_instructions(code))
    place = next((i for i, step in enumerate(steps) if step.offset == offset), len(steps))
    if place < len(steps) and steps[place].opname == "TO_BOOL":
        place += 1
    if place >= len(steps) - 1 or not steps[place].opname.endswith(("IF_TRUE", "IF_FALSE")):
        return None, ""
    if_true = steps[place].opname.endswith("IF_TRUE")
    target = next(i for i, step in enumerate(steps) if step.offset == steps[place].argval)
    by_jump, onward = _name_of_raised_error(steps, target), _name_of_raised_error(steps, place + 1)
    if bool(by_jump) == bool(onward):
        return None, ""
    return if_true == bool(onward), by_jump or onward


def _name_of_raised_error(instructions: Sequence[dis.Instruction], start: int) -> str:
    """Return the name of the error that the instructions from ``start`` on raise without doing anything else, or ""."""
    name = ""
    for step in instructions[start : start + MAX_RAISE_STEPS]:
        if step.opname == "RAISE_VARARGS":
            return name or "Exception"
        if any(end in step.opname for end in BRANCH_ENDS) or step.opname.startswith(SIDE_EFFECTS):
            return ""
        if step.opname in ("LOAD_ASSERTION_ERROR", "LOAD_COMMON_CONSTANT"):
            name = name or "AssertionError"
        elif step.opname == "LOAD_GLOBAL" and _builtin_error(step.argval) is not None:
            name = name or str(step.argval)
    return ""


def _builtin_error(name: object) -> type[BaseException] | None:
    """Return Python's built-in exception class with this name, or None."""
    found = getattr(builtins, str(name), None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


@functools.lru_cache(1024)
def _may_catch(code: CodeType, offset: int, error_name: str) -> bool:
    """Return whether an ``except`` around a bytecode offset of a function may catch the error with this name."""
    handlers = [entry.target for entry in dis.Bytecode(code).exception_entries if entry.start <= offset < entry.end]  # type: ignore[attr-defined]
    steps = [step for step in dis.get_instructions(code) if step.opname != "NOP"]
    return any(_handler_catches([step for step in steps if step.offset >= handler], error_name) for handler in handlers)


def _handler_catches(instructions: Sequence[dis.Instruction], error_name: str) -> bool:
    """Return whether an exception handler's instructions may catch the error with this name and continue."""
    named: list[object] = []
    passed = -1
    for step, after in pairwise(instructions):
        if step.offset < passed:
            continue
        if step.opname in ("WITH_EXCEPT_START", "RERAISE"):
            return False
        if step.opname == "POP_EXCEPT":
            return after.opname != "RERAISE"
        if step.opname == "CHECK_EXC_MATCH":
            kinds, raised = [_builtin_error(name) for name in named], _builtin_error(error_name) or Exception
            if any(kind is None or issubclass(raised, kind) or issubclass(kind, raised) for kind in kinds):
                return True
            named, passed = [], after.argval  # what comes where it does not match
        elif step.opname.startswith("LOAD_"):
            named.append(step.argval)
    return False
