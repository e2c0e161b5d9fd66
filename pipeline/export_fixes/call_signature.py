"""Read the signature of a model's ``forward``: a compiled program is called as the model is."""

from __future__ import annotations

import inspect

import torch
from torch.export import ExportedProgram

from pipeline.export_fixes.torchscript.module import interpreted
from pipeline.records.parameter import Parameter

PLAIN = (type(None), bool, int, float, str)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def signature_of(model: object) -> tuple[Parameter, ...]:
    """Return the parameters of ``forward``, or those of an export, without ``*args`` and ``**kwargs``."""
    module: object = model.module() if isinstance(model, ExportedProgram) else model
    inner = interpreted(module)
    if not isinstance(inner, torch.nn.Module):
        return ()
    try:
        rows = inspect.signature(inner.forward).parameters.values()
    except (TypeError, ValueError):  # a builtin, which has none
        return ()
    return tuple(map(_parameter, (row for row in rows if row.kind not in _VARIADIC)))


def _parameter(row: inspect.Parameter) -> Parameter:
    plain = type(row.default) in PLAIN
    return Parameter(row.name, row.kind in _POSITIONAL, plain, row.default if plain else None)
