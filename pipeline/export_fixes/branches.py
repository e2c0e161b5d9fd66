"""Trace both branches of a data-dependent ``if`` in TorchScript, and select between their results at run time.

The TorchScript interpreter (`export_fixes.torchscript`) calls `trace_both_branches` if the condition of a ``prim::If``
is data-dependent. Each branch is traced as if it were taken, and must be pure: `torch.where` selects values, but cannot
undo side effects. A data-dependent ``if`` in Python code raises a `CaptureError` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Final

import torch
from attrs import define, field
from torch._C import _functorch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from pipeline.aten.op_predicates import branch_only_reason
from pipeline.aten.types import Argument, Target
from pipeline.errors import CaptureError
from pipeline.export_fixes.patching import Kernel
from pipeline.export_fixes.runtime_asserts import is_data_dependent
from pipeline.program import describe_value
from pipeline.records.wording import kind_of
from pipeline.shapes.environment import shape_of

HINT: Final = "select between values with torch.where(condition, one, other), or run only one branch with torch.cond"


class Unset:
    """Stands for the value of a variable that one of two branches does not assign."""

    def __repr__(self) -> str:
        return "not set"


UNSET: Final = Unset()


@define
class Branch:
    """A branch of a TorchScript ``if`` that is being traced.

    Attributes:
        memory: the storages of the tensors that the branch creates; it may write only to these.
        effect: text that names the first operator with a side effect, and says why; empty if the branch is pure.
    """

    memory: set[StorageWeakRef] = field(factory=set)
    effect: str = ""


@define
class SelectedResult:
    """The result of a data-dependent ``if``: the storages of the tensors that eager may return, and its source line."""

    memory: frozenset[StorageWeakRef]
    place: str


@define
class Trace:
    """The state of a trace: the branches of data-dependent ``if`` s that are being traced, from the outermost to the
    innermost, and the results that ``if`` s selected by `torch.where`, to which the model may not write."""

    open_branches: list[Branch] = field(factory=list)
    selected: list[SelectedResult] = field(factory=list)


trace: ContextVar[Trace | None] = ContextVar("branches of a trace", default=None)
"""The branches of the current trace; `trace_both_branches` may be called only while this is set."""


def is_selectable_condition(condition: object) -> bool:
    """Return whether `trace_both_branches` accepts a condition: a data-dependent one-element tensor, during a trace."""
    if trace.get() is None or not isinstance(condition, torch.Tensor):
        return False
    return is_data_dependent(condition) and set(shape_of(condition)) <= {1}


def trace_both_branches(
    condition: torch.Tensor, if_true: Callable[[], Argument], if_false: Callable[[], Argument], line: str
) -> Argument:
    """Trace both branches of an ``if``, and return for each result a `torch.where` that selects by the condition. Raise
    `CaptureError`, with the source ``line``, for a branch that is not pure, or results of unequal types or shapes."""
    condition = condition.reshape(()) != 0  # a tensor of its own: the condition may be written to later
    branches = Branch(), Branch()
    results = [_trace_branch(branch, run, line) for branch, run in zip(branches, (if_true, if_false), strict=True)]
    (ours, spec), (theirs, other) = map(tree_flatten, results)
    if spec != other:
        raise _branch_error(line, f"returns {_result_text(results[0])} or {_result_text(results[1])}")
    rows = zip(ours, theirs, strict=True)
    return tree_unflatten([_select_result(condition, pair, branches, line) for pair in rows], spec)


def _trace_branch(branch: Branch, run: Callable[[], Argument], line: str) -> Argument:
    """Trace a branch by calling ``run``; return its result, or raise `CaptureError` at ``line`` for a side effect."""
    now = trace.get()
    assert now is not None
    now.open_branches.append(branch)
    try:
        result = run()
    finally:
        now.open_branches.pop()
    if branch.effect:
        raise _branch_error(line, f"has a side effect in a branch, so both branches cannot run: {branch.effect}")
    return result


def _select_result(
    condition: torch.Tensor, results: tuple[Argument, Argument], branches: Sequence[Branch], line: str
) -> Argument:
    """Return one result of an ``if``, given its value in each branch: a `torch.where`, or just one of the values if
    both are equal or the other branch assigns none. ``branches``: the records of the two branches."""
    yes, no = results
    if yes is no or no is UNSET or _are_equal_numbers(yes, no):
        return yes
    if yes is UNSET:
        return no
    if not (isinstance(yes, torch.Tensor) and isinstance(no, torch.Tensor) and _tensor_type(yes) == _tensor_type(no)):
        raise _branch_error(line, f"returns {_result_text(yes)} or {_result_text(no)}")
    chosen = torch.where(condition, yes, no)
    shared = [x for x, branch in zip(results, branches, strict=True) if _storage_of(x) not in branch.memory]
    now = trace.get()
    if now is not None and shared:
        now.selected.append(SelectedResult(frozenset(map(_storage_of, (chosen, *shared))), line))
    return chosen


def record_side_effects(
    orig: Kernel, mode: Argument, func: Target, pre_dispatch: bool, args: Argument, kwargs: Argument
) -> object:
    """Replace torch's ``proxy_call``, which traces one operator (``orig``, with the same arguments). Also record the
    operator's side effects in the branches being traced; reject a write to the result of a data-dependent ``if``."""
    result, now = orig(mode, func, pre_dispatch, args, kwargs), trace.get()
    if now is None or not (now.open_branches or now.selected):
        return result
    written = {_storage_of(tensor) for tensor in _written_tensors(func, args, kwargs or {})}
    for choice in now.selected:
        if written & choice.memory:
            why = f"the model writes in place to a tensor that the data-dependent if at {choice.place} may return"
            raise CaptureError(why, "write to a clone: which of two tensors the if returns is unknown when compiling")
    before = {_storage_of(tensor) for tensor in _tensors_in((args, kwargs))}
    made = {_storage_of(tensor) for tensor in _tensors_in(result)} - before
    for branch in now.open_branches:
        why = branch_only_reason(func, args, result, mutates_own_memory=bool(written) and written <= branch.memory)
        branch.effect = branch.effect or (f"{func} {why}" if why else "")
        branch.memory |= made
    return result


def _written_tensors(func: Target, args: Argument, kwargs: Mapping[str, Argument]) -> Iterator[torch.Tensor]:
    if func._schema.is_mutable:
        given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | dict(kwargs)
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                yield from _tensors_in(given.get(argument.name))


def _tensors_in(value: Argument) -> Iterator[torch.Tensor]:
    yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _storage_of(tensor: torch.Tensor) -> StorageWeakRef:
    while _functorch.is_functorch_wrapped_tensor(tensor):  # torch.vmap's wrapper has no memory of its own
        tensor = _functorch.get_unwrapped(tensor)
    return StorageWeakRef(tensor.untyped_storage())


def _branch_error(line: str, problem: str) -> CaptureError:
    return CaptureError(f"the data-dependent if at {line} {problem}", HINT)


def _tensor_type(tensor: torch.Tensor) -> tuple[tuple[object, ...], torch.dtype, torch.device]:
    return shape_of(tensor), tensor.dtype, tensor.device


def _are_equal_numbers(a: object, b: object) -> bool:
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(a.node.expr == b.node.expr)
    return type(a) is type(b) and isinstance(a, int | float | str | torch.dtype | torch.device) and a == b


def _result_text(value: object) -> str:
    if isinstance(value, tuple | list | dict):
        return f"{kind_of(value)} of {len(value)}"
    return describe_value(value) if isinstance(value, torch.Tensor) else str(value)[:40]
