"""Declare the attempts at an export in their order: `exporter` takes the next one after a failure.

``print(printed())`` shows it; the log of `pipeline.export_fixes.exporter` says which attempt was taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal, TypeAlias

import torch
from attrs import frozen
from torch._dynamo.exc import UserError
from torch._guards import CompileContext
from torch.export.dynamic_shapes import refine_dynamic_shapes_from_suggested_fixes
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_flatten

from pipeline.aten.types import Argument, Spec
from pipeline.export_fixes import dynamic_shapes as ranges
from pipeline.export_fixes import remembered
from pipeline.export_fixes.runtime_asserts import is_caught

Way: TypeAlias = Literal["python", "called", "comparing", "anew", "bytecode", "autograd", "example"]
"""How torch.export traces. ``"python"``: it runs Python. ``"called"``: so too, and the model is not told that it is
exported (`untold`). ``"comparing"``: as ``"python"``, and where several sizes are compared the example decides.
``"anew"``: as ``"python"``, and the model forgets the shapes of its last call (`remembered`).
``"bytecode"``: it reads bytecode, and so what Python keeps, as caches do, and numbers that ``int`` makes of sizes (not
while ``torch.compile`` does so, which it would crash). ``"autograd"``: below autograd, where ``torch.func`` has done
its work. ``"example"``: as ``"python"``, with the branches of the example where data decides."""

Try: TypeAlias = tuple[Spec, Way]
"""The dynamic shapes and the way of one export."""


@frozen(eq=False)
class First:
    """The first export of a model, with the shapes that were requested.

    Attributes:
        model: the model.
        shapes: the dynamic shapes.
        way: ``"python"``, or ``"example"``.
        error: why it failed; None if it did not, but a number is fixed in its graph.
        by_inputs: whether the ranges are those of `Input` s, and not torch's own ``Dim`` s, which have names.
        has_one_size: whether torch took a size that varies for a constant.
        is_narrower: whether torch takes narrower ranges, and no dim is derived from another.
    """

    model: torch.nn.Module
    shapes: Spec
    way: Way
    error: Exception | None
    by_inputs: bool
    has_one_size: bool
    is_narrower: bool

    @property
    def fails_for_the_model(self) -> bool:
        """Whether the model's own code raised the error, and no range or data-dependent branch did."""
        return self.way == "python" and not isinstance(self.error, UserError | GuardOnDataDependentSymNode)

    @property
    def reads_bytecode(self) -> bool:
        """Whether Dynamo may trace: it is not tracing already, and no caught check of data was seen."""
        return self.way == "python" and CompileContext.try_get() is None and not is_caught()


@frozen(eq=False)
class Attempt:
    """A row of the table.

    Attributes:
        name: its name, in the log.
        when: when it is tried, in words.
        changes: what it changes, in words.
        tries: the exports that it tries after the first one; none if it has no use there.
    """

    name: str
    when: str
    changes: str
    tries: Callable[[First], Iterator[Try]]


def _with(way: Way, applies: Callable[[First], bool]) -> Callable[[First], Iterator[Try]]:
    """Export in another way, with the same shapes."""

    def tries(first: First) -> Iterator[Try]:
        if applies(first):
            yield first.shapes, way

    return tries


def _numbers(first: First) -> Iterator[Try]:
    if first.reads_bytecode:
        yield from ((each, "bytecode") for each in (first.shapes, *ranges.relaxed(first.shapes)))


def _roomier(first: First) -> Iterator[Try]:
    yield from ((each, first.way) for each in ranges.roomier(first.shapes))


def _tied(first: First) -> Iterator[Try]:
    shapes = tied(first.error, first.shapes) if first.by_inputs and isinstance(first.error, UserError) else None
    if shapes is not None:
        yield shapes, first.way


def _relaxed(first: First) -> Iterator[Try]:
    if not first.is_narrower:
        yield from ((each, first.way) for each in ranges.relaxed(first.shapes))


NUMBERS: Final = Attempt(
    "numbers", "the graph fixes a number that int() makes of sizes", "Dynamo reads the bytecode", _numbers
)
"""The attempt after an export that did not fail."""

ATTEMPTS: Final = (
    Attempt(
        "anew",
        "the model remembers the shape of a call",
        "it forgets the shape",
        _with("anew", lambda first: first.way == "python" and bool(remembered.shapes(first.model))),
    ),
    Attempt("roomier", "a size is 1 or 2", "the size may be 3 as well", _roomier),
    Attempt(
        "bytecode first",
        "torch took a size for a constant",
        "Dynamo reads the bytecode",
        _with("bytecode", lambda first: first.reads_bytecode and first.has_one_size),
    ),
    Attempt(
        "called",
        "the model itself fails",
        "it is not told that it is exported",
        _with("called", lambda first: first.fails_for_the_model and not first.has_one_size),
    ),
    Attempt(
        "comparing",
        "the model itself fails",
        "the example decides where sizes of two inputs are compared",
        _with("comparing", lambda first: first.fails_for_the_model and not first.has_one_size),
    ),
    Attempt("tied", "torch needs dims of Inputs to be equal", "these dims are one", _tied),
    Attempt("relaxed", "a range is at fault", "torch may demand more of a size, such as s % 4 == 0", _relaxed),
    Attempt(
        "bytecode",
        "no size is a constant",
        "Dynamo reads the bytecode",
        _with("bytecode", lambda first: first.reads_bytecode and not first.has_one_size),
    ),
    Attempt(
        "autograd",
        "always",
        "torch traces below autograd",
        _with("autograd", lambda first: first.way == "python"),
    ),
)
"""The attempts after an export that failed, in their order."""


def printed() -> str:
    """Return the table: a line for each attempt, with when it is tried, and what it changes."""
    rows = [("attempt", "tried if", "what it changes"), *((a.name, a.when, a.changes) for a in (NUMBERS, *ATTEMPTS))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def tied(error: UserError, shapes: Spec) -> object:
    """Return the shapes with those dims tied which torch.export reports as equal; None if it suggests other changes
    too.

    Inputs give each dim a name of its own, while a model may need two of them to be one (a mask and what it masks).
    Their ranges stay as requested: a suggestion that narrows one, or makes it a number, is not taken.
    """
    try:
        found = refine_dynamic_shapes_from_suggested_fixes(error.msg, shapes)
    except Exception:  # it parses the message, which may suggest nothing that it understands
        return None
    return found if _bounds(found) == _bounds(shapes) else None


def _bounds(shapes: object) -> list[Argument]:
    """Return the least and the greatest size of each dim."""
    return [(dim.min, dim.max) if hasattr(dim, "min") else dim for dim in tree_flatten(shapes)[0]]
