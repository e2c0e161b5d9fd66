"""Outputs of a program that say whether a call decides otherwise than the example."""

from __future__ import annotations

from attrs import evolve
from torch.utils._pytree import tree_flatten, tree_unflatten

from pipeline.export_fixes import ExportNotes
from pipeline.program import Program


def with_decisions(program: Program, notes: ExportNotes) -> Program:
    """Return the program with a last output for each place: whether a call decides otherwise there."""
    if not notes.decisions:
        return program
    first = len(program.outputs) - len(notes.decisions)
    rows = zip(program.outputs[first:], notes.decisions, strict=True)
    asked = (evolve(output, kind="decision", target=place) for output, place in rows)
    returned, _ = tree_unflatten([*range(program.out_spec.num_leaves)], program.out_spec)
    return evolve(program, outputs=(*program.outputs[:first], *asked), out_spec=tree_flatten(returned)[1])
