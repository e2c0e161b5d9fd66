"""Name the inputs whose dtype the model does not take, instead of the operator that eager's error names."""

from __future__ import annotations

import torch

from pipeline.aten.dtypes import Misfit, misfits, short
from pipeline.errors import CaptureError, DtypeError, source_line
from pipeline.export_fixes import ExportNotes
from pipeline.program import Program


def check_dtypes(program: Program, _: ExportNotes) -> Program:
    """Return the program, if eager takes its dtypes: torch's fake tensors accept more.

    Raises:
        DtypeError: an input's dtype is the cause; the message names the input, the operator and its line.
        CaptureError: the model itself brings two dtypes together.
    """
    inputs = {port.name for port in program.inputs}
    usual = {torch.float32, *(tensor.dtype for tensor in program.parameters.values())}
    for node in program.graph.nodes:
        found = sorted(misfits(node), key=lambda misfit: misfit.found in usual)
        for misfit in found:
            sources = _sources(misfit)
            if sources and sources <= inputs:
                name = next(port.name for port in program.inputs if port.name in sources)
                raise DtypeError(name, short(misfit.found), misfit.due, _told(node, misfit))
        if found:
            have = f"{_told(node, found[0])}, not {short(found[0].found)} where {found[0].due} is expected"
            raise CaptureError(f"the model cannot run: {have}", "cast the value in the model: eager fails as well")
    return program


def _sources(misfit: Misfit) -> set[str]:
    """Return the placeholders from which a value has its dtype."""
    seen, todo = set[torch.fx.Node](), [misfit.value]
    while todo:
        node = todo.pop()
        value = node.meta.get("val")
        if node not in seen and isinstance(value, torch.Tensor) and value.dtype == misfit.found:
            seen.add(node)
            todo += node.all_input_nodes
    return {node.name for node in seen if node.op == "placeholder"}


def _told(node: torch.fx.Node, misfit: Misfit) -> str:
    where = source_line(node)
    return f"{node.target}{where and f' ({where})'} {misfit.why}"
