"""Assign units to levels: the units of one level share a segment.

Segments alternate, PyTorch first: level 0 is PyTorch's, level 1 an engine, and so on. The level of a unit is the
largest number of changes between the two on a path from the inputs to it. So no segment depends on itself, parallel
branches share one, and the number of engines is the least that any cut allows: that of the path that enters engines
most often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pipeline.partitioning.flow import Flow, Value
from pipeline.partitioning.units import Units


def levels(flow: Flow, units: Units, in_torch: Sequence[bool]) -> list[int]:
    """Return the level of each unit: the first at which it can run, or a later one at which fewer bytes cross."""
    found = [0] * len(units.members)
    for unit in units.order:
        own = in_torch[unit]
        steps = [found[other] + (in_torch[other] != own) for other in units.before[unit]]
        found[unit] = max([0 if own else 1, *steps])
    for unit in reversed(units.order):
        _delay(flow, units, in_torch, found, unit)
    return found


def sizes(units: Units, in_torch: Sequence[bool], level: Sequence[int]) -> Counter[int]:
    """Return the number of operators of each engine, by level."""
    return Counter(level[unit] for unit in units.of if not in_torch[unit])


def _delay(flow: Flow, units: Units, in_torch: Sequence[bool], level: list[int], unit: int) -> None:
    """Move a unit to the segment of its first reader, unless more bytes would cross then."""
    steps = (level[other] - (in_torch[other] != in_torch[unit]) for other in units.after[unit])
    last = min(steps, default=level[unit])
    if last > level[unit]:
        first, now = level[unit], _crossing_bytes(flow, units, level, unit)
        level[unit] = last
        if _crossing_bytes(flow, units, level, unit) > now:
            level[unit] = first


def _crossing_bytes(flow: Flow, units: Units, level: Sequence[int], unit: int) -> int:
    """Return the bytes of a unit's inputs and results that cross between segments."""

    def crosses(value: Value) -> bool:
        return value.maker is not None and any(
            level[units.of[i]] != level[units.of[value.maker]] for i in value.readers
        )

    around = {v for i in units.members[unit] for v in (*flow.made[i], *flow.read[i])}
    return sum(flow.values[v].nbytes for v in around if crosses(flow.values[v]))
