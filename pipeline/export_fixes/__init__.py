"""Export models that torch.export alone rejects: patch torch, prepare example inputs, and retry with other options.

`pipeline.capture` imports only the names below from this package.
"""

from pipeline.export_fixes.dynamic_shapes import asked
from pipeline.export_fixes.error_attribution import GENERATOR
from pipeline.export_fixes.export_steps import has_transforms
from pipeline.export_fixes.exporter import export, signature_of
from pipeline.export_fixes.input_checks import check_values
from pipeline.export_fixes.interrupts import interruptible, undoing
from pipeline.export_fixes.known_numbers import is_determined_by_sizes
from pipeline.export_fixes.onnx_file import opened
from pipeline.export_fixes.patch_contexts import exporting, tracing, tracing_for
from pipeline.export_fixes.requests import ExportNotes, Wish, requested

__all__ = [
    "GENERATOR",
    "ExportNotes",
    "Wish",
    "asked",
    "check_values",
    "export",
    "exporting",
    "has_transforms",
    "interruptible",
    "is_determined_by_sizes",
    "opened",
    "requested",
    "signature_of",
    "tracing",
    "tracing_for",
    "undoing",
]
