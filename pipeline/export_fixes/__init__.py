"""Export models that torch.export alone rejects: patch torch, prepare example inputs, and retry with other options.

Code outside of this package imports only the names below.
"""

from pipeline.export_fixes.dynamic_shapes import requested_bounds
from pipeline.export_fixes.error_attribution import GENERATOR_MESSAGE
from pipeline.export_fixes.export_steps import has_transforms
from pipeline.export_fixes.exporter import export, signature_of
from pipeline.export_fixes.input_checks import check_values
from pipeline.export_fixes.interrupts import interruptible, undo_at_exit
from pipeline.export_fixes.known_numbers import is_determined_by_sizes
from pipeline.export_fixes.onnx_file import open_onnx_model
from pipeline.export_fixes.patch_contexts import patch_for_device, patch_for_export, patch_for_trace
from pipeline.export_fixes.requests import ExportNotes, ProfileRanges, check_request

__all__ = [
    "GENERATOR_MESSAGE",
    "ExportNotes",
    "ProfileRanges",
    "check_request",
    "check_values",
    "export",
    "has_transforms",
    "interruptible",
    "is_determined_by_sizes",
    "open_onnx_model",
    "patch_for_device",
    "patch_for_export",
    "patch_for_trace",
    "requested_bounds",
    "signature_of",
    "undo_at_exit",
]
