"""Compare the results of a whole program with eager's and float64's, leaf by leaf."""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_flatten

from pipeline.program import Program
from pipeline.records.wording import kind_of
from pipeline.testing.memory import named_leaves
from pipeline.testing.ulps import PROGRAM

LARGEST = 8.0
"""The expected bound of values inside a program; an error may be that of a number as large."""


def difference(what: str, want: object, best: object, got: object, program: Program, executor: str) -> str:
    """Describe how ``got`` differs from eager's ``want`` (``best``: the same in float64); empty if it does not."""
    wanted, spec = named_leaves(want)
    given, our_spec = tree_flatten(got)
    if spec != our_spec:
        return f"the {what}s are structured as {our_spec}, eager's as {spec}"
    exact = tree_flatten(best)[0] if best is not None else [None] * len(given)
    dtype = _coarsest(program)
    for (where, eager), ours, double in zip(wanted, given, exact, strict=True):
        if fault := _leaf(eager, double, ours, dtype, executor):
            return f"{what}{where}: {fault}"
    return ""


def _coarsest(program: Program) -> torch.dtype:
    """Return the dtype with the coarsest rounding among the floats that the program computes in."""
    values = [n.meta.get("val") for n in program.graph.nodes]
    floats = {v.dtype for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()}
    return max(floats - {torch.float64}, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def _leaf(eager: object, exact: object, got: object, dtype: torch.dtype, executor: str) -> str:
    if not isinstance(eager, torch.Tensor):
        return "" if type(got) is type(eager) and got == eager else f"{got!r}, eager gives {eager!r}"
    if not isinstance(got, torch.Tensor):
        return f"{kind_of(got)}, eager gives a tensor"
    for name in ("dtype", "shape", "device"):
        if getattr(got, name) != getattr(eager, name):
            return f"the {name} is {getattr(got, name)}, eager's is {getattr(eager, name)}"
    wrong = _wrong_elements(eager, exact, got, dtype, executor) if eager.is_floating_point() else got != eager
    if not bool(wrong.any()):
        return ""
    at = tuple(map(int, wrong.nonzero()[0]))
    return f"at {list(at)} {got[at].item()!r}, eager gives {eager[at].item()!r} ({int(wrong.sum())} of {wrong.numel()})"


def _wrong_elements(
    eager: torch.Tensor, exact: object, got: torch.Tensor, dtype: torch.dtype, executor: str
) -> torch.Tensor:
    """Return a mask of elements further from float64 than twice eager's own worst error plus the units of a program."""
    best = exact if isinstance(exact, torch.Tensor) and exact.shape == eager.shape else eager
    best, single, ours = best.double(), eager.double(), got.double()
    worst = float((single - best).abs().nan_to_num(0.0, 0.0, 0.0).max()) if best.numel() else 0.0
    largest = float(best.abs().nan_to_num(0.0, 0.0, 0.0).max()) if best.numel() else 0.0
    units = PROGRAM[dtype].allowed(executor, dtype) * torch.finfo(dtype).eps
    close = (ours - best).abs() <= 2 * worst + units * max(LARGEST, largest)
    return ~(close | (ours == single) | (ours.isnan() & single.isnan()))
