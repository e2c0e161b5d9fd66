"""The table of retries after a failed torch.export; `exporter` tries the rows in order until an export succeeds.

`retries_as_text` returns the table as text; the logger `pipeline.export_fixes.exporter` names the row that succeeded.
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
from pipeline.export_fixes.model_state import kept_state
from pipeline.export_fixes.patching import align_columns
from pipeline.export_fixes.restore_model_state import join_path
from pipeline.export_fixes.runtime_asserts import checks

TraceMode: TypeAlias = Literal["python", "called", "comparing", "anew", "bytecode", "autograd", "example"]
"""How torch.export traces a model. ``"python"`` runs the model's Python code. So do three variants: in ``"called"``,
``torch.compiler.is_exporting()`` is False in the model; in ``"comparing"``, the example input decides comparisons of
several sizes; in ``"anew"``, shapes that the last call stored are cleared (`clear_stored_shapes`). In
``"bytecode"``, Dynamo interprets the bytecode, including caches and ints computed from sizes (unusable while
``torch.compile`` traces: it would crash). ``"autograd"`` traces below autograd, after ``torch.func``. ``"example"`` is
``"python"`` with data-dependent branches taken as for the example input."""


@frozen(eq=False)
class FirstExport:
    """The outcome of a model's first export, which requests the user's dynamic shapes.

    Attributes:
        error: the export's error; None if it succeeded, but an int computed from sizes became a constant (`NUMBERS`).
        has_input_ranges: whether the ranges come from `Input` s, not from torch's named ``Dim`` s.
        has_specialized_size: whether the export was made, but a dynamic size of an input is constant in it.
        needs_narrower_ranges: whether torch accepts only narrower ranges; False if any dim is derived (``4*s``).
    """

    model: torch.nn.Module
    shapes: Spec
    mode: TraceMode
    error: Exception | None
    has_input_ranges: bool
    has_specialized_size: bool
    needs_narrower_ranges: bool

    @property
    def fails_in_model_code(self) -> bool:
        """Whether the model's code raised the export's error; False for errors about ranges or branches on data."""
        return self.mode == "python" and not isinstance(self.error, UserError | GuardOnDataDependentSymNode)

    @property
    def can_retry_with_dynamo(self) -> bool:
        """Whether a retry may use Dynamo, which assumes that value checks (``if x.isnan().any(): raise``) pass: not if
        the model may catch the error of a check, nor if Dynamo is active already or traced the first export."""
        found = checks.get()
        is_caught = found is not None and bool(found.caught)
        return self.mode == "python" and CompileContext.try_get() is None and not is_caught


@frozen(eq=False)
class Attempt:
    """One way to retry a failed torch.export: a row of the table `ATTEMPTS`.

    Attributes:
        when, changes: text for the table: after which failures the row applies, and what it changes in the export.
        applies: returns whether the retry may succeed where the first export failed.
        mode: the trace mode of the retry; None: the mode of the first export.
        shapes: returns the dynamic shapes to request, one after the other.
    """

    name: str
    when: str
    changes: str
    applies: Callable[[FirstExport], bool]
    mode: TraceMode | None = None
    shapes: Callable[[FirstExport], Iterable[Spec]] = lambda first: (first.shapes,)


NO_SIZE: Final = -2
"""A size that no tensor can have: creating or viewing a tensor with it raises an error."""


def stored_shapes(model: torch.nn.Module) -> dict[str, torch.Size]:
    """Return each ``torch.Size`` that a module of the model stores as an attribute, by attribute path."""
    rows = ((join_path(path, name), v) for path, module in model.named_modules() for name, v in vars(module).items())
    return {place: value for place, value in rows if type(value) is torch.Size}


@contextmanager
def clear_stored_shapes(model: torch.nn.Module) -> Iterator[None]:
    """Return a context for a trace in which the shapes that a model stored in its last call are cleared, so that they
    match no tensor. The caller restores them.

    Consider ``if self.shape != x.shape: self.grid, self.shape = make_grid(x.shape), x.shape`` (YOLO heads, position
    caches). After a call of the model, torch.export would specialize sizes to the stored shape. With a cleared shape,
    the trace computes the grid; `model_state` checks that no result depends on an earlier call. If the traced call
    does not assign the attribute again, a `CaptureError` is raised: the stored shape is that of an earlier call.
    """
    found = stored_shapes(model)
    for place, shape in found.items():
        path, _, name = place.rpartition(".")
        vars(model.get_submodule(path))[name] = torch.Size([NO_SIZE] * len(shape))
    yield
    kept = kept_state.get()
    if left := ", ".join(sorted(found.keys() - (kept.changes.keys() if kept is not None else set()))):
        raise CaptureError(f"the attribute {left} keeps the shape of an earlier call: assign it in each call")


NUMBERS: Final = Attempt(
    "numbers",
    "the graph fixes an int that is computed from sizes",
    "Dynamo reads the bytecode",
    lambda first: first.can_retry_with_dynamo,
    "bytecode",
    lambda first: (first.shapes, *ranges.relax_ranges(first.shapes)),
)
"""The retry after an export that succeeded, but specialized a number computed from sizes to a constant."""

ATTEMPTS: Final = (
    Attempt(
        "anew",
        "the model stores the shape of a call",
        "the stored shape is cleared",
        lambda first: first.mode == "python" and bool(stored_shapes(first.model)),
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
        lambda first: first.can_retry_with_dynamo and first.has_specialized_size,
        "bytecode",
    ),
    Attempt(
        "called",
        "the model itself fails",
        "torch.compiler.is_exporting() is False in the model",
        lambda first: first.fails_in_model_code and not first.has_specialized_size,
        "called",
    ),
    Attempt(
        "comparing",
        "the model itself fails",
        "the example decides where sizes of two inputs are compared",
        lambda first: first.fails_in_model_code and not first.has_specialized_size,
        "comparing",
    ),
    Attempt(
        "tied",
        "torch needs dims of Inputs to be equal",
        "these dims share a Dim",
        lambda first: first.has_input_ranges and isinstance(first.error, UserError),
        shapes=lambda first: share_dims_reported_equal(first.error, first.shapes),
    ),
    Attempt(
        "relaxed",
        "torch rejects a range",
        "torch may add conditions, such as s % 4 == 0",
        lambda first: not first.needs_narrower_ranges,
        shapes=lambda first: ranges.relax_ranges(first.shapes),
    ),
    Attempt(
        "bytecode",
        "torch specialized no size",
        "Dynamo reads the bytecode",
        lambda first: first.can_retry_with_dynamo and not first.has_specialized_size,
        "bytecode",
    ),
    Attempt("autograd", "always", "torch traces below autograd", lambda first: first.mode == "python", "autograd"),
)
"""The retries after an export that failed, in the order in which they are tried."""


def retries_as_text() -> str:
    """Return the table of retries as text: a line for each retry, with its condition and what it changes."""
    rows = ((each.name, each.when, each.changes) for each in (NUMBERS, *ATTEMPTS))
    return align_columns(("attempt", "tried if", "what it changes"), *rows)


def share_dims_reported_equal(error: Argument, shapes: Spec) -> Iterator[Spec]:
    """Yield, at most once, the dynamic shapes in which dims that torch's error reports as equal share a ``Dim``.

    torch rejects a model that needs equal dims (of a mask and the masked tensor), since each dim of an `Input` has a
    name of its own. Nothing is yielded if torch's suggestions also narrow a range or make a dim static.
    """
    try:
        found = refine_dynamic_shapes_from_suggested_fixes(error.msg, shapes)
    except Exception:  # it parses the message, which may suggest nothing that it understands
        return
    if _dim_bounds(found) == _dim_bounds(shapes):
        yield found


def _dim_bounds(shapes: object) -> list[Argument]:
    """Return the entries of the dynamic shapes as a flat list, with (min, max) in place of each ``Dim``."""
    return [(dim.min, dim.max) if hasattr(dim, "min") else dim for dim in tree_flatten(shapes)[0]]
