"""Define ``ExportNotes``: facts learnt during an export, beside the ``ExportedProgram``."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import frozen

from pipeline.export_fixes.profiles import Wish
from pipeline.frozen import FrozenDict
from pipeline.inputs import Constant


@frozen(eq=False)
class ExportNotes:
    """Facts about the module and its trace that an export lacks. For a user's ``ExportedProgram`` only inputs and
    profiles are known.

    Attributes:
        inputs: the example inputs, in order: tensors, `Input` s and other values. Empty: those of the export.
        profiles: for each profile the ranges of inputs.
        ranges: the requested least and greatest size (None: no bound) by the export's symbol.
        constants: the inputs that have one value, by their places.
        tensors: the module's tensors by name. An export of another device has fake ones in their place.
        checks: where the module checks its data, as ``file:line``: taken to hold.
        reads: the buffers whose numbers Python read: the graph is for these numbers.
        decisions: the places where the example decided, for as many outputs, which come last.
    """

    inputs: tuple[object, ...] = ()
    profiles: tuple[tuple[Wish, ...], ...] = ()
    ranges: Mapping[str, tuple[int, int | None]] = FrozenDict()
    constants: Mapping[int, Constant] = FrozenDict()
    tensors: Mapping[str, torch.Tensor] = FrozenDict()
    checks: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()
    decisions: tuple[str, ...] = ()
