"""Assign units to levels: the units of one level share a segment.

Segments alternate, PyTorch first: level 0 is PyTorch's, level 1 an engine, and so on. The level of a unit is the
largest number of changes between the two on a path from the inputs to it. So no segment depends on itself, parallel
branches share one, and the number of engines is the least that any cut allows: that of the path that enters engines
most often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pipeline.partitioning.flow import Flow
from pipeline.partitioning.units import Units


def levels(flow: Flow, units: Units, in_torch: Sequence[bool]) -> list[int]:
    """Return the level of each unit: the first at which it can run, or a later one at which fewer bytes cross."""
    found = [0] * len(units.members)
    for unit in units.order:
        own = in_torch[unit]
        steps = (found[other] + (in_torch[other] != own) for other in units.before[unit])
        found[unit] = max(steps, default=0 if own else 1)
        found[unit] = max(found[unit], 0 if own else 1)
    for unit in reversed(units.order):
        _delay(flow, units, in_torch, found, unit)
    return found


def sizes(units: Units, in_torch: Sequence[bool], level: Sequence[int]) -> Counter[int]:
    """Return the number of operators of each engine, by level."""
    counts: Counter[int] = Counter()
    for unit, inside in enumerate(units.members):
        if not in_torch[unit]:
            counts[level[unit]] += len(inside)
    return counts


def _delay(flow: Flow, units: Units, in_torch: Sequence[bool], level: list[int], unit: int) -> None:
    """Move a unit to the segment of its first reader, unless more bytes would cross then."""
    steps = (level[other] - (in_torch[other] != in_torch[unit]) for other in units.after[unit])
    last = min(steps, default=level[unit])
    if last > level[unit] and _crossing_bytes(flow, units, level, unit, last) <= _crossing_bytes(
        flow, units, level, unit, level[unit]
    ):
        level[unit] = last


def _crossing_bytes(flow: Flow, units: Units, level: list[int], unit: int, at: int) -> int:
    """Return the bytes of a unit's inputs and results that would cross if it ran at a level."""
    own, level[unit] = level[unit], at
    around = {v for i in units.members[unit] for v in (*flow.made[i], *flow.read[i])}
    total = sum(flow.values[v].nbytes for v in around if _crosses(flow, units, level, v))
    level[unit] = own
    return total


def _crosses(flow: Flow, units: Units, level: list[int], value: int) -> bool:
    maker = flow.values[value].maker
    if maker is None:
        return False
    made = level[units.of[maker]]
    return any(level[units.of[i]] != made for i in flow.values[value].readers)
