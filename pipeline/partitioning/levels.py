"""Assign units (operators that stay together) to levels: the units of one level form one segment.

Segments alternate: level 0 runs in PyTorch, level 1 in an engine, and so on. The level of a unit is the largest number
of changes between PyTorch and engines on any path from the inputs to the unit. So no segment depends on itself, and
parallel branches share a segment. The number of engines is the least possible: it equals the number of engines on the
path that enters engines most often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pipeline.partitioning.flow import Flow, Value
from pipeline.partitioning.units import Units


def unit_levels(flow: Flow, units: Units, in_torch: Sequence[bool]) -> list[int]:
    """Return each unit's level, its segment's number in the order of execution (even: PyTorch; odd: engine). It is the
    lowest possible, or higher if fewer bytes then cross segments. ``in_torch``: whether each unit is in PyTorch."""
    found = [0] * len(units.members)
    for unit in units.order:
        own = in_torch[unit]
        steps = [found[other] + (in_torch[other] != own) for other in units.before[unit]]
        found[unit] = max([0 if own else 1, *steps])
    for unit in reversed(units.order):
        _delay_unit(flow, units, in_torch, found, unit)
    return found


def operators_per_engine(units: Units, in_torch: Sequence[bool], levels: Sequence[int]) -> Counter[int]:
    """Return {level: number of operators} for the engines; a level is a segment's number in the order of execution."""
    return Counter(levels[unit] for unit in units.unit_of if not in_torch[unit])


def _delay_unit(flow: Flow, units: Units, in_torch: Sequence[bool], levels: list[int], unit: int) -> None:
    """Raise a unit's level to that of the first segment that reads it, unless more bytes then cross segments."""
    steps = (levels[other] - (in_torch[other] != in_torch[unit]) for other in units.after[unit])
    last = min(steps, default=levels[unit])
    if last > levels[unit]:
        first, now = levels[unit], _crossing_bytes(flow, units, levels, unit)
        levels[unit] = last
        if _crossing_bytes(flow, units, levels, unit) > now:
            levels[unit] = first


def _crossing_bytes(flow: Flow, units: Units, levels: Sequence[int], unit: int) -> int:
    """Return the bytes of those inputs and results of a unit that cross between segments."""

    def crosses(value: Value) -> bool:
        return value.producer is not None and any(
            levels[units.unit_of[i]] != levels[units.unit_of[value.producer]] for i in value.readers
        )

    around = {v for i in units.members[unit] for v in (*flow.produced[i], *flow.read[i])}
    return sum(flow.values[v].nbytes for v in around if crosses(flow.values[v]))
