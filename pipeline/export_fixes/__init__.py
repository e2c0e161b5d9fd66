"""Export models that torch.export alone rejects: patch torch, prepare example inputs, and retry with other options.

Code outside of this package imports only the names below.
"""

from pipeline.export_fixes.dynamic_shapes import requested_bounds as requested_bounds
from pipeline.export_fixes.error_attribution import GENERATOR_MESSAGE as GENERATOR_MESSAGE
from pipeline.export_fixes.export_steps import has_transforms as has_transforms
from pipeline.export_fixes.exporter import export as export
from pipeline.export_fixes.exporter import signature_of as signature_of
from pipeline.export_fixes.input_checks import check_values as check_values
from pipeline.export_fixes.interrupts import interruptible as interruptible
from pipeline.export_fixes.interrupts import undo_at_exit as undo_at_exit
from pipeline.export_fixes.known_numbers import is_determined_by_sizes as is_determined_by_sizes
from pipeline.export_fixes.onnx_file import open_onnx_model as open_onnx_model
from pipeline.export_fixes.patch_contexts import patch_for_device as patch_for_device
from pipeline.export_fixes.patch_contexts import patch_for_export as patch_for_export
from pipeline.export_fixes.patch_contexts import patch_for_trace as patch_for_trace
from pipeline.export_fixes.requests import ExportNotes as ExportNotes
from pipeline.export_fixes.requests import ProfileRanges as ProfileRanges
from pipeline.export_fixes.requests import check_request as check_request
