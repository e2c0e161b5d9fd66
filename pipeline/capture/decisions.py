"""Add outputs to a program that show whether a call takes another data-dependent branch than the example."""

from __future__ import annotations

from attrs import evolve
from torch.utils._pytree import tree_flatten, tree_unflatten

from pipeline.export_fixes import ExportNotes
from pipeline.program import Program


def with_decisions(program: Program, notes: ExportNotes) -> Program:
    """Return the program with its last outputs marked as decisions: whether a call takes another branch at a line."""
    if not notes.decisions:
        return program
    first = len(program.outputs) - len(notes.decisions)
    rows = zip(program.outputs[first:], notes.decisions, strict=True)
    asked = (evolve(output, kind="decision", target=place) for output, place in rows)
    returned, _ = tree_unflatten([*range(program.out_spec.num_leaves)], program.out_spec)
    return evolve(program, outputs=(*program.outputs[:first], *asked), out_spec=tree_flatten(returned)[1])
