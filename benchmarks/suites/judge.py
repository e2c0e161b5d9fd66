"""Compile one case of a suite, run it on the reference executor, and compare it with eager PyTorch and float64."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import torch
from attrs import field, frozen
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

import pipeline
from pipeline.errors import CaptureError, UnsupportedOperatorException
from pipeline.stages.unbuilt import unbuilt
from pipeline.testing.compare import describe_outputs_difference

Row: TypeAlias = dict[str, Any]
COMPILE = pipeline.default(min_block_size=1).replace("build", unbuilt)
UNSET = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
"""Operators whose results have no values yet."""


@frozen
class Case:
    """One case of a suite: its name, and a function that judges it.

    Its row has an ``outcome``: right, refused, wrong, or ``no case``, which eager PyTorch does not run either. The last
    three have a ``reason``, the first the number of ``operators``, and those ``in_pytorch`` with their reasons.
    """

    name: str
    judge: Callable[[], Row] = field(repr=False)


class Call(torch.nn.Module):
    """A function of tensors as a module; other arguments are part of it."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.function = function
        self.leaves, self.spec = tree_flatten((tuple(args), kwargs))
        self.given = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the function."""
        arguments: tuple[tuple[Any, ...], dict[str, Any]] = tree_unflatten(self.leaves, self.spec)
        return arguments

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors among the arguments."""
        return [self.leaves[i] for i in self.given]

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Call the function with these tensors in the places of its own."""
        leaves = list(self.leaves)
        for i, tensor in zip(self.given, tensors, strict=True):
            leaves[i] = tensor
        args, kwargs = tree_unflatten(leaves, self.spec)
        return self.function(*args, **kwargs)


@frozen
class Captured:
    """A compiler of judged modules: the module as it is captured by ``pipeline.capture``."""

    def __call__(self, model: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> tuple[Any, list[pipeline.Compiled]]:
        """Return what to call, and the compiled programs in it."""
        compiled: pipeline.Compiled = COMPILE(pipeline.capture(model, tuple(tensors)))
        return compiled.module("reference"), [compiled]


def judged_call(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Row:
    """Judge a function of tensors and other values."""
    call = Call(function, args, kwargs)
    return judged(call, call.tensors)


def judged(model: torch.nn.Module, tensors: Sequence[torch.Tensor], compile: Any = Captured()) -> Row:
    """Judge a module: whether its results and its arguments after the call are eager's, and what runs in PyTorch."""
    try:
        eager = called(copied(model), tensors)
    except Exception as error:
        return {"outcome": "no case", "reason": said(error)}
    try:
        run, programs = compile(copied(model), fresh(tensors))
        ours = called(run, tensors)
    except (CaptureError, UnsupportedOperatorException) as error:
        return {"outcome": "refused", "reason": said(error)}
    except Exception as error:
        return {"outcome": "wrong", "reason": f"{type(error).__name__}: {said(error)}"}
    return compared(programs, eager, exact(model, tensors, eager), ours)


def compared(programs: Sequence[pipeline.Compiled], eager: Any, best: Any, ours: Any) -> Row:
    """Return the row of a call that eager and the programs of a model computed."""
    row = {
        "operators": sum(compiled.coverage.total for compiled in programs),
        "in_pytorch": dict(
            Counter(f"{f.target}: {f.reason}" for compiled in programs for f in compiled.coverage.fallback)
        ),
    }
    if any(map(draws, programs)):
        fault = "" if described(ours) == described(eager) else f"{described(ours)}, eager returns {described(eager)}"
    else:
        fault = describe_outputs_difference("result", pairs(eager), best, pairs(ours), programs[0].program, "reference")
    return {"outcome": "wrong", "reason": fault, **row} if fault else {"outcome": "right", **row}


def exact(model: torch.nn.Module, tensors: Sequence[torch.Tensor], eager: Any) -> Any:
    """Return the results in float64; None where an operator does not run so, or returns another structure."""
    with suppress(Exception):
        best = pairs(called(double(copied(model)), [double(tensor) for tensor in fresh(tensors)]))
        return best if tree_flatten(best)[1] == tree_flatten(pairs(eager))[1] else None
    return None


def double(value: Any) -> Any:
    """Return a module or a tensor in float64 or complex128; other tensors as they are."""
    if isinstance(value, torch.nn.Module):
        return value.double()
    if value.layout != torch.strided or not (value.is_floating_point() or value.is_complex()):
        return value
    count = value.untyped_storage().nbytes() // value.element_size()
    memory = value.as_strided((count,), (1,), 0).to(torch.complex128 if value.is_complex() else torch.float64)
    return memory.as_strided(value.size(), value.stride(), value.storage_offset())  # some read what is around


def copied(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of a module that has state, since a call may change it."""
    return copy.deepcopy(model) if model.state_dict() else model


def fresh(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return copies, of the same strides, since a case may write to its arguments."""
    return copy.deepcopy([tensor.detach() for tensor in tensors])


def called(run: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> Any:
    """Return the results of a call that draws its random numbers from the seed 0, and the arguments after it."""
    given = fresh(tensors)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        return run(*given), given


def draws(compiled: pipeline.Compiled) -> bool:
    """Return whether results are random numbers, or memory as it is found: only dtypes and shapes can be compared."""
    graph = compiled.program.graph
    targets = [node.target for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    names = {target._schema.name.removeprefix("aten::") for target in targets}
    return any(torch.Tag.nondeterministic_seeded in target.tags for target in targets) or bool(names & UNSET)


def pairs(results: Any) -> Any:
    """Return results with pairs of reals in the place of complex numbers, and dense tensors of sparse ones."""

    def real(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        leaf = leaf.to_dense() if leaf.layout != torch.strided else leaf
        return torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf

    return tree_map(real, results)


def described(results: Any) -> list[Any]:
    """Return dtypes and shapes of tensors, and the types of other values."""

    def short(leaf: Any) -> Any:
        return (str(leaf.dtype), tuple(leaf.shape)) if isinstance(leaf, torch.Tensor) else type(leaf).__name__

    return list(map(short, tree_leaves(results)))


def said(error: BaseException) -> str:
    """Return the first line of an error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:400]
