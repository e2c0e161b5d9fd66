"""Capture an ``nn.Module``, ``ExportedProgram``, TorchScript or ONNX file as a ``Program``.

The package `export_fixes` exports modules; a user's ``ExportedProgram`` is used as it is. No argument is changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from attrs import evolve
from torch.export import ExportedProgram

from pipeline.aten.tracing_thread import one_export
from pipeline.aten.types import Spec
from pipeline.capture.exported_checks import check_assumptions, check_dtypes, check_export, check_resizes
from pipeline.capture.from_notes import add_profiles, add_read_numbers, insert_constants, mark_decisions
from pipeline.capture.functional import functionalize
from pipeline.capture.lifting import program_of_export
from pipeline.capture.origin import record_origin
from pipeline.capture.output_names import name_outputs
from pipeline.capture.shared_tensors import flatten_subclasses
from pipeline.distributed.sharded import use_local_tensors
from pipeline.export_fixes import export, interruptible, open_onnx_model, patch_for_device, signature_of
from pipeline.program import Program
from pipeline.runtime.autocast_context import without_autocast
from pipeline.settings import CompilationSettings

Model: TypeAlias = "torch.nn.Module | ExportedProgram | torch.jit.ScriptFunction[Any, Any] | str | os.PathLike[str]"
"""The types of models that `capture` accepts; a string or path names an ONNX file."""

STEPS: Final = (
    *(flatten_subclasses, mark_decisions, insert_constants),
    *(check_dtypes, check_resizes),
    *(add_read_numbers, add_profiles),
)
"""The passes that apply what an export learnt: each takes a program and its `ExportNotes`, and returns a program."""


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
        profiles: several ``dynamic_shapes``; each call must fit one of them. The model is captured once for all.

    Raises:
        CaptureError: torch.export cannot capture the module (the error contains its message), a weight has no value, or
            a TorchScript node is not supported (the message names the node, file and line).
        DtypeError: an input has a wrong dtype for the model; the message names the input and the expected dtype.
        TypeError: ``model`` has none of these types, or ``forward`` does not accept these inputs.
        ValueError: ``dynamic_shapes`` names a missing input or dim; inputs that are passed with an ExportedProgram do
            not fit it; the number of ``output_names`` is wrong.
    """
    settings = (settings or CompilationSettings()).evolve(**({} if device is None else {"device": device}))
    model, args = open_onnx_model(model, args, kwargs)
    with one_export, patch_for_device(settings.device, settings.compute_capabilities):
        with use_local_tensors(model, args, kwargs, settings.device) as local:
            if isinstance(model, ExportedProgram):
                exported, notes = (model, check_export(model, args, kwargs, dynamic_shapes, profiles, settings.device))
            else:
                exported, notes = export(model, local.args, local.kwargs, dynamic_shapes, settings, profiles)
        with without_autocast():
            check_assumptions(exported, notes)
            program = program_of_export(*functionalize(exported), notes, settings)
            for step in STEPS:
                program = step(program, notes)
            program = local.add_sharding(program)
    return record_origin(evolve(name_outputs(program, output_names), signature=signature_of(model)), model)
