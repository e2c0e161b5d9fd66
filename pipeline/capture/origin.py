"""``Origin``: a weak reference to the module from which a program was captured, and its state at that time."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from attrs import evolve, field, frozen

from pipeline.frozen import FrozenDict
from pipeline.program import Program
from pipeline.recipes import Recipe
from pipeline.runtime.autocast_context import current_autocast_dtypes

SourceModel: TypeAlias = "torch.nn.Module | torch.jit.ScriptFunction[Any, Any]"


@frozen(eq=False, repr=False)
class Origin:
    """The module that a program was captured from, and the module's state at that time.

    modes: whether each submodule was in training mode. autocast: the dtypes of the active autocast, by device. graph,
    constants: those of the captured program. changed: whether a stage has changed the program. Copies of a program
    share its ``Origin``; that of an unpickled program is empty.
    """

    reference: weakref.ReferenceType[SourceModel] | None = None
    modes: tuple[bool, ...] = ()
    autocast: Mapping[str, torch.dtype | None] = field(factory=FrozenDict)
    graph: weakref.ReferenceType[torch.fx.GraphModule] | None = None
    constants: FrozenDict[str, Recipe] = field(factory=FrozenDict)
    changed: bool = False

    @property
    def model(self) -> SourceModel | None:
        """Return the captured module, or None if it no longer exists."""
        return self.reference() if self.reference is not None else None

    def __copy__(self, memo: object = None) -> Origin:
        """Return the same object, since it is immutable."""
        return self

    __deepcopy__ = __copy__

    def __reduce__(self) -> tuple[type[Origin], tuple[()]]:
        return Origin, ()


def record_origin(program: Program, model: object) -> Program:
    """Return a newly captured program with its origin; a program from an ``ExportedProgram`` has no origin."""
    if not isinstance(model, torch.nn.Module | torch.jit.ScriptFunction):
        return program
    autocast, graph = FrozenDict(current_autocast_dtypes()), weakref.ref(program.graph_module)
    return evolve(program, origin=Origin(weakref.ref(model), training_modes(model), autocast, graph, program.constants))


def origin_of(program: Program) -> Origin | None:
    """Return the `Origin` of a program: the module that was captured. None for a program from an ``ExportedProgram``.
    Its field ``changed`` is True if a stage between capture and `decompose` has changed the program."""
    origin: Origin | None = program.origin
    if origin is None or origin.graph is None or program.source is not None:
        return origin
    same = origin.graph() is program.graph_module and origin.constants == program.constants
    return origin if same else evolve(origin, changed=True)


def training_modes(model: SourceModel) -> tuple[bool, ...]:
    """Return whether each submodule is in training mode; False for frozen TorchScript, which has no such flag."""
    parts = model.modules() if isinstance(model, torch.nn.Module) else ()
    return tuple(bool(getattr(part, "training", False)) for part in parts)
