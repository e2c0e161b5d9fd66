"""Functionalize an exported program: remove its mutation, and inline its regions such as ``torch.no_grad()``.

Rewriting (`capture.mutation`) removes writes in linear time. A program with a case that has no rewriting rule (writes
to parameters, training, user-defined operators that mutate, autocast and ``torch.vmap`` within the model) is
functionalized by torch, which traces it again.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Final

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature

from pipeline.capture.aliases import UnknownAliasError
from pipeline.capture.inlining import calls_context_region, inline_context_regions
from pipeline.capture.mutation import remove_mutation
from pipeline.capture.retracing import redundant_symbols, retrace
from pipeline.capture.shared_tensors import merge_aliased_constants
from pipeline.errors import CaptureError
from pipeline.export_fixes import has_transforms

HINT: Final = (
    "ExportedProgram.run_decompositions({}) alone shows the same; write to clones of tensors, not to their views"
)


def functionalize(exported: ExportedProgram) -> tuple[ExportedProgram, torch.fx.GraphModule, ExportGraphSignature]:
    """Return an export (traced again by torch if necessary), its graph without in-place operators, and the signature of
    that graph. The argument is not changed.

    Raises:
        CaptureError: a write cannot be functionalized; the message contains torch's.
    """
    try:
        with warnings.catch_warnings():  # torch's own, of its own code
            warnings.simplefilter("ignore")
            return _functionalize(exported)
    except CaptureError:
        raise
    except Exception as error:
        why = f"torch.export cannot functionalize the in-place operators of the model: {error}"
        raise CaptureError(why, HINT) from error


def _functionalize(exported: ExportedProgram) -> tuple[ExportedProgram, torch.fx.GraphModule, ExportGraphSignature]:
    """Return what `functionalize` returns, with torch's errors and warnings."""
    module = inline_context_regions(exported.graph_module)
    module, signature = merge_aliased_constants(module, exported)
    unsupported = any(map(calls_context_region, module.graph.nodes)) or has_transforms(module)
    redundant = redundant_symbols(exported)
    if not unsupported and not redundant:
        with suppress(UnknownAliasError):
            return exported, *remove_mutation(module, signature)
    exported = retrace(exported, redundant)
    return exported, exported.graph_module, exported.graph_signature
