"""Apply what an export learnt of the model (`ExportNotes`), such as its branches, to the exported program.
They add constants for `pipeline.Constant` inputs; outputs that say whether a call takes another branch than the
example; numbers that Python read in buffers; and the ranges of symbols in each profile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import evolve
from torch.utils._pytree import tree_flatten, tree_unflatten

from pipeline.aten.naming import make_unique
from pipeline.errors import CaptureError
from pipeline.export_fixes import ExportNotes, ProfileRanges
from pipeline.frozen import FrozenDict
from pipeline.program import Port, Program
from pipeline.recipes import named_buffer_numbers, parameter_recipe
from pipeline.shapes.environment import Range, ShapeEnvironment
from pipeline.shapes.from_export import balanced_split_ranges
from pipeline.shapes.linear import solve_for


def insert_constants(program: Program, notes: ExportNotes) -> Program:
    """Return the program with constants in place of its `pipeline.Constant` inputs, which are ``notes.constants``.

    Raises:
        CaptureError: the model writes to such an input.
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
            raise CaptureError(f"the model writes to the input {name}, a pipeline.Constant", "pass a tensor instead")
        target = f"the input {name}"
        with graph.inserting_before(placeholders[name]):
            node = graph.placeholder(make_unique(f"constant_{name}", names))
        node.meta = dict(placeholders[name].meta)
        placeholders[name].replace_all_uses_with(node, delete_user_cb=lambda user: user.op != "output")
        inputs[place] = Port(name, kind="constant", value=constant)
        added[node.name], tensors[target] = parameter_recipe(target), constant.value
    program.graph_module.recompile()
    return evolve(
        program,
        inputs=tuple(inputs),
        constants=FrozenDict(added),
        parameters=FrozenDict(tensors),
        examples=FrozenDict({n: x for n, x in program.examples.items() if n not in replaced}),
        written=program.written | (tensors.keys() - program.parameters.keys()),
    )


def mark_decisions(program: Program, notes: ExportNotes) -> Program:
    """Set the kind of the last outputs to ``"decision"``, and remove them from the values that the caller gets.
    The export added one for each source line in ``notes.decisions`` (``if x.sum() > 0``): it is True if a call takes
    another branch at that line than the example inputs did."""
    if not notes.decisions:
        return program
    first = len(program.outputs) - len(notes.decisions)
    rows = zip(program.outputs[first:], notes.decisions, strict=True)
    asked = (evolve(output, kind="decision", target=place) for output, place in rows)
    returned, _ = tree_unflatten([*range(program.out_spec.num_leaves)], program.out_spec)
    return evolve(program, outputs=(*program.outputs[:first], *asked), out_spec=tree_flatten(returned)[1])


def add_read_numbers(program: Program, notes: ExportNotes) -> Program:
    """Set ``program.numbers``: the elements of the buffers ``notes.reads``, which Python read during the export."""
    read = ((name, program.parameters[name]) for name in sorted(notes.reads & program.parameters.keys()))
    numbers = {place: number for name, buffer in read for place, number in named_buffer_numbers(name, buffer)}
    return evolve(program, numbers=FrozenDict(numbers))


def add_profiles(program: Program, notes: ExportNotes) -> Program:
    """Return the program with the ranges of its symbols in each profile of ``notes.profiles``.

    If the model splits a dim into pieces whose sizes depend on data, the optimal sizes of the pieces add up to that of
    the dim.

    Raises:
        ValueError: a profile excludes every value of a size.
    """
    profiles = enumerate(notes.profiles)
    found = [_symbol_ranges_in_profile(at, each, program.inputs, program.shapes) for at, each in profiles]
    each = (FrozenDict({**one, **balanced_split_ranges(program.graph, {**program.shapes, **one})}) for one in found)
    return evolve(program, profiles=tuple(each))


def _symbol_ranges_in_profile(
    profile_index: int, input_ranges: Sequence[ProfileRanges], inputs: Sequence[Port], shapes: ShapeEnvironment
) -> dict[str, Range]:
    """Return each symbol's range that follows from a profile's ranges of inputs, clipped to that in ``shapes``."""
    found: dict[str, Range] = {}
    for wish in input_ranges:
        for name, given in _implied_symbol_ranges(wish, inputs[wish.input]):
            known = found.get(name, shapes[name])
            low, high = max(known.min, given.min), min(known.max, given.max)
            if low > high:
                name = inputs[wish.input].name
                why = f"profiles[{profile_index}] has a range of {name} in which the model accepts no size"
                raise ValueError(f"{why}: change this range")
            found[name] = Range(low, min(max(given.opt, low), high), high)
    return found


def _implied_symbol_ranges(input_ranges: ProfileRanges, port: Port) -> Iterator[tuple[str, Range]]:
    """Yield (symbol, range) for each symbol in the sizes of an input (``port``), from the dims' ranges in a profile: if
    a dim of size ``2*s0`` has the range 2 to 8, the range of ``s0`` is 1 to 4."""
    for dim, given in input_ranges.ranges.items():
        size = port.shape[dim] if port.kind == "tensor" else None
        if size is None or isinstance(size, int) or len(size.free_symbols) != 1:
            continue
        (symbol,) = size.free_symbols
        ends = [e if size.is_Symbol else solve_for(size, symbol.name, e) for e in (given.min, given.opt, given.max)]
        known = sorted(end for end in ends if end is not None)
        if len(known) == 3:
            yield symbol.name, Range(*known)
