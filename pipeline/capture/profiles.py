"""The ranges of symbols in each profile, from its ranges of the inputs' sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import evolve

from pipeline.export_fixes import ExportNotes, Wish
from pipeline.frozen import FrozenDict
from pipeline.program import Port, Program
from pipeline.shapes.environment import Range, ShapeEnvironment
from pipeline.shapes.from_export import tuned_together
from pipeline.shapes.lines import solved


def with_profiles(program: Program, notes: ExportNotes) -> Program:
    """Return the program with the ranges of its symbols in each profile. The data-dependent sizes of a split's pieces
    are tuned so that they add up to the split dim in that profile.

    Raises:
        ValueError: a profile leaves no value for a size.
    """
    found = [_symbols(at, each, program.inputs, program.shapes) for at, each in enumerate(notes.profiles)]
    each = (FrozenDict({**one, **tuned_together(program.graph, {**program.shapes, **one})}) for one in found)
    return evolve(program, profiles=tuple(each))


def _symbols(at: int, wishes: Sequence[Wish], inputs: Sequence[Port], shapes: ShapeEnvironment) -> dict[str, Range]:
    found: dict[str, Range] = {}
    for wish in wishes:
        for name, given in _implied_ranges(wish, inputs[wish.leaf]):
            known = found.get(name, shapes[name])
            low, high = max(known.min, given.min), min(known.max, given.max)
            if low > high:
                raise ValueError(f"profile {at} leaves {inputs[wish.leaf].name} no size that the model takes")
            found[name] = Range(low, min(max(given.opt, low), high), high)
    return found


def _implied_ranges(wish: Wish, port: Port) -> Iterator[tuple[str, Range]]:
    """Yield the symbols in an input's sizes with the values that a profile implies."""
    for dim, given in wish.ranges.items():
        size = port.shape[dim] if port.kind == "tensor" else None
        if size is None or isinstance(size, int) or len(size.free_symbols) != 1:
            continue
        (symbol,) = size.free_symbols
        ends = [e if size.is_Symbol else solved(size, symbol.name, e) for e in (given.min, given.opt, given.max)]
        known = sorted(end for end in ends if end is not None)
        if len(known) == 3:
            yield symbol.name, Range(*known)
