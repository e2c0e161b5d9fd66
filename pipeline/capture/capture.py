"""Capture an ``nn.Module``, ``ExportedProgram``, TorchScript or ONNX file as a ``Program``.

`export_fixes` exports modules; a user's ``ExportedProgram`` is used as it is. The arguments are not changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from attrs import evolve
from torch.export import ExportedProgram

from pipeline.aten.tracing_thread import one_export
from pipeline.aten.types import Spec
from pipeline.capture.exported_checks import check_dtypes, check_written, checked
from pipeline.capture.from_notes import warn_of_unchecked, with_constants, with_decisions, with_profiles
from pipeline.capture.lifting import lifted
from pipeline.capture.origin import with_origin
from pipeline.capture.output_names import named
from pipeline.capture.shared_tensors import flattened
from pipeline.distributed.sharded import use_local_tensors
from pipeline.export_fixes import ExportNotes, export, interruptible, opened, signature_of, tracing_for
from pipeline.frozen import FrozenDict
from pipeline.program import Program
from pipeline.recipes import buffer_numbers
from pipeline.runtime.autocast_context import without_autocast
from pipeline.settings import CompilationSettings

Model: TypeAlias = "torch.nn.Module | ExportedProgram | torch.jit.ScriptFunction[Any, Any] | str | os.PathLike[str]"
"""What can be captured."""


@interruptible
def capture(
    model: Model,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    dynamic_shapes: object = None,
    settings: CompilationSettings | None = None,
    *,
    device: str | torch.device | None = None,
    output_names: Sequence[str] | None = None,
    profiles: Sequence[Spec] | None = None,
) -> Program:
    """Capture a module called with ``args`` and ``kwargs``, or an ``ExportedProgram``, as a program.

    Args:
        model: a module (exported here, without gradients), the result of ``torch.export.export`` or ``torch.jit``, or
            the path of an ONNX file. An ONNX model returns a dict, and needs no ``args`` if its sizes are static.
        args: example inputs, in any pytree: tensors, ``pipeline.Input`` with shapes and ranges, or
            ``pipeline.Constant`` for an input with a fixed value.
        kwargs: example inputs by keyword.
        dynamic_shapes: as in ``torch.export.export``; merged with the ranges of ``Input`` s.
        settings: the settings that stages read; default ones if None.
        device: ``"cuda"`` captures as on a GPU, even on a machine without a GPU: the model and torch take the same
            branches as on a GPU. The model and the inputs are not moved. None: ``settings.device``.
        output_names: the names of the outputs, in order. None: their keys in the model's return value (``logits``,
            ``hidden_states.0``), ``output`` for a single tensor, ``output.0`` for a position in a tuple.
        profiles: several ``dynamic_shapes``, of which each call must fit one; the model is captured once for all.

    Raises:
        CaptureError: torch.export cannot capture the module (the error contains its message), a weight has no value, or
            a TorchScript node is not supported (the message names the node, file and line).
        DtypeError: an input has a wrong dtype for the model; the message names the input and the expected dtype.
        TypeError: ``model`` is none of these, or ``forward`` does not accept these inputs.
        ValueError: ``dynamic_shapes`` names a missing input or dim; inputs that are passed with an ExportedProgram do
            not fit it; the number of ``output_names`` is wrong.
    """
    settings = (settings or CompilationSettings()).evolve(**({} if device is None else {"device": device}))
    model, args = opened(model, args, kwargs)
    with one_export, tracing_for(settings.device, settings.compute_capabilities):
        with use_local_tensors(model, args, kwargs, settings.device) as local:
            if isinstance(model, ExportedProgram):
                exported, notes = model, checked(model, args, kwargs, dynamic_shapes, profiles, settings.device)
            else:
                exported, notes = export(model, local.args, local.kwargs, dynamic_shapes, settings, profiles)
        with without_autocast():
            warn_of_unchecked(exported, notes)
            program = lifted(exported, notes, settings)
            for step in (flattened, with_decisions, with_constants, check_dtypes, check_written, _with_numbers):
                program = step(program, notes)
            program = local.add_sharding(with_profiles(program, notes))
    return with_origin(evolve(named(program, output_names), signature=signature_of(model)), model)


def _with_numbers(program: Program, notes: ExportNotes) -> Program:
    """Return the program with the values of the buffers whose numbers Python read."""
    read = ((name, program.parameters[name]) for name in sorted(notes.reads & program.parameters.keys()))
    numbers = {place: number for name, buffer in read for place, number in buffer_numbers(name, buffer)}
    return evolve(program, numbers=FrozenDict(numbers))
