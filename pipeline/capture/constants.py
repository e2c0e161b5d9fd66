"""Inputs with one value, `pipeline.Constant`, as constants of the program."""

from __future__ import annotations

from attrs import evolve

from pipeline.aten.naming import unlike
from pipeline.errors import CaptureError
from pipeline.export_fixes import ExportNotes
from pipeline.frozen import FrozenDict
from pipeline.program import Port, Program
from pipeline.recipes import identity


def with_constants(program: Program, notes: ExportNotes) -> Program:
    """Return the program with the constants in place of these inputs.

    Raises:
        CaptureError: the model writes to one.
    """
    if not notes.constants:
        return program
    graph, names = program.graph, {node.name for node in program.graph.nodes}
    placeholders = {node.name: node for node in graph.find_nodes(op="placeholder")}
    replaced = set[str]()
    inputs, added, tensors = list(program.inputs), dict(program.constants), dict(program.parameters)
    for place, constant in notes.constants.items():
        name = inputs[place].name
        replaced.add(name)
        if any(output.kind == "input" and output.target == name for output in program.outputs):
            raise CaptureError(f"the model writes to the input {name}, which is a Constant", "pass it as a tensor")
        target = f"the input {name}"
        with graph.inserting_before(placeholders[name]):
            node = graph.placeholder(unlike(f"constant_{name}", names))
        node.meta = dict(placeholders[name].meta)
        placeholders[name].replace_all_uses_with(node, delete_user_cb=lambda user: user.op != "output")
        inputs[place] = Port(name, kind="constant", value=constant)
        added[node.name], tensors[target] = identity(target), constant.value
    program.graph_module.recompile()
    return evolve(
        program,
        inputs=tuple(inputs),
        constants=FrozenDict(added),
        parameters=FrozenDict(tensors),
        examples=FrozenDict({n: x for n, x in program.examples.items() if n not in replaced}),
        written=program.written | (tensors.keys() - program.parameters.keys()),
    )
