"""The table of retries for a failed export. `exporter` makes them in this order until an export succeeds.

``print(printed())`` shows the table; the logger `pipeline.export_fixes.exporter` reports which attempt succeeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Literal, TypeAlias

import torch
from attrs import frozen
from torch._dynamo.exc import UserError
from torch._guards import CompileContext
from torch.export.dynamic_shapes import refine_dynamic_shapes_from_suggested_fixes
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_flatten

from pipeline.aten.types import Argument, Spec
from pipeline.errors import CaptureError
from pipeline.export_fixes import dynamic_shapes as ranges
from pipeline.export_fixes.model_state import changed_attributes
from pipeline.export_fixes.patching import align_columns
from pipeline.export_fixes.restore_model_state import join_path
from pipeline.export_fixes.runtime_asserts import checks

TraceMode: TypeAlias = Literal["python", "called", "comparing", "anew", "bytecode", "autograd", "example"]
"""How torch.export traces. ``"python"``: it runs the model's Python code. The next three do so, too: ``"called"``:
``torch.compiler.is_exporting()`` is False in the model; ``"comparing"``: the example decides comparisons of several
sizes; ``"anew"``: shapes stored by the last call are cleared (`clear_remembered_shapes`). ``"bytecode"``: Dynamo
interprets the bytecode, with the contents of caches and ints computed from sizes (not while ``torch.compile`` traces,
which would crash). ``"autograd"``: below autograd, where ``torch.func`` has been applied. ``"example"``: as
``"python"``, and data-dependent branches are taken as for the example."""


@frozen(eq=False)
class FirstExport:
    """The outcome of the first export of a model, with the requested shapes.

    Attributes:
        error: the error of the export; None if the export succeeded, but its graph fixes a number.
        by_inputs: whether the ranges come from `Input` s, not from torch's named ``Dim`` s.
        has_one_size: whether torch specialized a dynamic size to a constant.
        is_narrower: whether torch accepts only narrower ranges, and no dim is derived from another dim.
    """

    model: torch.nn.Module
    shapes: Spec
    mode: TraceMode
    error: Exception | None
    has_input_ranges: bool
    has_one_size: bool
    is_narrower: bool

    @property
    def fails_for_the_model(self) -> bool:
        """Whether the model's own code raised the error; False for errors about ranges or data-dependent branches."""
        return self.mode == "python" and not isinstance(self.error, UserError | GuardOnDataDependentSymNode)

    @property
    def can_read_bytecode(self) -> bool:
        """Whether Dynamo may trace the retry: it is not active, and the model caught no error of a value check."""
        found = checks.get()
        is_caught = found is not None and bool(found.caught)
        return self.mode == "python" and CompileContext.try_get() is None and not is_caught


@frozen(eq=False)
class Attempt:
    """A retry of a failed export: a row of `ATTEMPTS`.

    Attributes:
        when, changes: descriptions of the failures that are retried, and of the change to the export.
        applies: returns whether the attempt may help.
        way: the trace mode of torch.export; None: the mode of the first export.
        shapes: returns the dynamic shapes of each export to try.
    """

    name: str
    when: str
    changes: str
    applies: Callable[[FirstExport], bool]
    mode: TraceMode | None = None
    shapes: Callable[[FirstExport], Iterable[Spec]] = lambda first: (first.shapes,)

    def exports_to_try(self, first: FirstExport) -> Iterator[tuple[Spec, TraceMode]]:
        """Yield the shapes and the trace mode of each export to try; nothing if the attempt cannot help."""
        if self.applies(first):
            yield from ((each, self.mode or first.mode) for each in self.shapes(first))


NO_SIZE: Final = -2
"""No tensor has this size, and none can be made or viewed with it."""


def remembered_shapes(model: torch.nn.Module) -> dict[str, torch.Size]:
    """Return the shapes that a model's modules store as attributes, by attribute path."""
    rows = ((join_path(path, name), v) for path, module in model.named_modules() for name, v in vars(module).items())
    return {place: value for place, value in rows if type(value) is torch.Size}


@contextmanager
def clear_remembered_shapes(model: torch.nn.Module) -> Iterator[None]:
    """Return a context for a trace in which the shapes that a model stored in its last call are cleared, so that they
    match no tensor. The caller restores them.

    Consider ``if self.shape != x.shape: self.grid, self.shape = make_grid(x.shape), x.shape`` (YOLO heads, position
    caches). After a call of the model, torch.export would specialize sizes to the stored shape. With a cleared shape,
    the trace computes the grid; `model_state` checks that no result depends on an earlier call. If the trace does not
    assign a cleared shape, a `CaptureError` is raised, since it is not the shape of the last call.
    """
    found = remembered_shapes(model)
    for place, shape in found.items():
        path, _, name = place.rpartition(".")
        vars(model.get_submodule(path))[name] = torch.Size([NO_SIZE] * len(shape))
    yield
    if left := found.keys() - changed_attributes():
        raise CaptureError(f"{type(model).__name__} does not assign {', '.join(sorted(left))} in each call")


NUMBERS: Final = Attempt(
    "numbers",
    "the graph fixes an int that is computed from sizes",
    "Dynamo reads the bytecode",
    lambda first: first.can_read_bytecode,
    "bytecode",
    lambda first: (first.shapes, *ranges.relax_ranges(first.shapes)),
)
"""The attempt after an export that did not fail."""

ATTEMPTS: Final = (
    Attempt(
        "anew",
        "the model stores the shape of a call",
        "the stored shape is cleared",
        lambda first: first.mode == "python" and bool(remembered_shapes(first.model)),
        "anew",
    ),
    Attempt(
        "roomier",
        "a size is 1 or 2",
        "the range is extended to 3",
        lambda first: True,
        shapes=lambda first: ranges.extend_two_size_ranges(first.shapes),
    ),
    Attempt(
        "bytecode first",
        "torch specialized a dynamic size",
        "Dynamo reads the bytecode",
        lambda first: first.can_read_bytecode and first.has_one_size,
        "bytecode",
    ),
    Attempt(
        "called",
        "the model itself fails",
        "torch.compiler.is_exporting() is False in the model",
        lambda first: first.fails_for_the_model and not first.has_one_size,
        "called",
    ),
    Attempt(
        "comparing",
        "the model itself fails",
        "the example decides where sizes of two inputs are compared",
        lambda first: first.fails_for_the_model and not first.has_one_size,
        "comparing",
    ),
    Attempt(
        "tied",
        "torch needs dims of Inputs to be equal",
        "these dims share a Dim",
        lambda first: first.has_input_ranges and isinstance(first.error, UserError),
        shapes=lambda first: tie_dims(first.error, first.shapes),
    ),
    Attempt(
        "relaxed",
        "torch rejects a range",
        "torch may add conditions, such as s % 4 == 0",
        lambda first: not first.is_narrower,
        shapes=lambda first: ranges.relax_ranges(first.shapes),
    ),
    Attempt(
        "bytecode",
        "torch specialized no size",
        "Dynamo reads the bytecode",
        lambda first: first.can_read_bytecode and not first.has_one_size,
        "bytecode",
    ),
    Attempt("autograd", "always", "torch traces below autograd", lambda first: first.mode == "python", "autograd"),
)
"""The attempts after an export that failed, in their order."""


def table_text() -> str:
    """Return the table as text: for each attempt a line with the condition and the change."""
    rows = ((each.name, each.when, each.changes) for each in (NUMBERS, *ATTEMPTS))
    return align_columns(("attempt", "tried if", "what it changes"), *rows)


def tie_dims(error: Argument, shapes: Spec) -> Iterator[Spec]:
    """Yield the shapes with one ``Dim`` for dims that torch reports as equal; nothing if it suggests other changes.

    Each dim of an `Input` has a unique name, while a model may need equal dims (a mask and the masked tensor). The
    ranges stay as requested: suggestions that narrow a range or make a dim static are ignored.
    """
    try:
        found = refine_dynamic_shapes_from_suggested_fixes(error.msg, shapes)
    except Exception:  # it parses the message, which may suggest nothing that it understands
        return
    if _dim_bounds(found) == _dim_bounds(shapes):
        yield found


def _dim_bounds(shapes: object) -> list[Argument]:
    return [(dim.min, dim.max) if hasattr(dim, "min") else dim for dim in tree_flatten(shapes)[0]]
