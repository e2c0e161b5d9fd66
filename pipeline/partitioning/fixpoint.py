"""Decide which operators run in engines: all that can, unless cuts cost too much or engines are too small or many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from pipeline.partitioning.boundary_ops import bytes_saved_by_operator_in_torch
from pipeline.partitioning.flow import Flow
from pipeline.partitioning.levels import operators_per_engine, unit_levels
from pipeline.partitioning.units import Units
from pipeline.settings import CompilationSettings

NumberedSegment: TypeAlias = tuple[bool, tuple[int, ...]]
"""A segment: True for an engine, False for PyTorch; and the numbers of its operators."""


def choose_segments(
    flow: Flow, units: Units, refused: Mapping[int, str], settings: CompilationSettings
) -> tuple[tuple[NumberedSegment, ...], Mapping[int, str]]:
    """Move operators to PyTorch until engines are large and few enough, and no move saves bytes between segments.
    Return the segments in the order in which they run, and {operator number: reason} for the operators in PyTorch.

    refused: the operators that must run in PyTorch, each with the reason. If ``refused`` is empty, one engine runs all.
    """
    reasons, given_up = dict(refused), set[int]()
    in_torch = [any(i in refused for i in inside) for inside in units.members]
    while True:
        level = unit_levels(flow, units, in_torch)
        moved = _reasons_of_next_moves(flow, units, in_torch, level, settings, given_up) if reasons else {}
        if not moved:
            break
        for unit in dict.fromkeys(other for i in moved for other in units.same_side[units.unit_of[i]]):
            in_torch[unit] = True
        for i, why in moved.items():
            for other in units.same_side[units.unit_of[i]]:
                reasons.update((j, why) for j in units.members[other] if j not in reasons)
    groups: dict[int, list[int]] = defaultdict(list)
    for unit, inside in enumerate(units.members):
        groups[level[unit]] += inside
    return tuple((at % 2 == 1, tuple(sorted(groups[at]))) for at in sorted(groups)), reasons


def _reasons_of_next_moves(
    flow: Flow,
    units: Units,
    in_torch: Sequence[bool],
    levels: Sequence[int],
    settings: CompilationSettings,
    moved_before: set[int],
) -> dict[int, str]:
    """Return {operator: reason} for the operators to move to PyTorch next. ``levels``: the segment of each unit, by
    number. ``moved_before``: the operators that moved to save bytes, to which this function adds."""
    least = settings.min_block_size
    if saved := bytes_saved_by_operator_in_torch(flow, units, in_torch, levels, least, moved_before):
        moved_before |= saved.keys()
        return {i: f"neighbours in PyTorch: {count} fewer bytes cross between segments" for i, count in saved.items()}
    small = _reasons_of_small_engines(operators_per_engine(units, in_torch, levels), least, settings.max_engines)
    return {i: small[levels[unit]] for i, unit in enumerate(units.unit_of) if levels[unit] in small}


def _reasons_of_small_engines(counts: Mapping[int, int], min_size: int, max_engines: int | None) -> dict[int, str]:
    """Return {engine: reason} for the engines to give up: those with fewer than ``min_size`` operators, or, if there
    are none, the smallest of more than ``max_engines``. ``counts``: {engine: number of operators}. An engine is given
    by its level, its number in the order of execution."""
    small = {
        at: "1 operator" if count == 1 else f"{count} operators" for at, count in counts.items() if count < min_size
    }
    if small or max_engines is None or len(counts) <= max_engines:
        reason = f"fewer than min_block_size={min_size}"
        return {at: f"its engine would have only {number}, {reason}" for at, number in small.items()}
    smallest = sorted(counts, key=lambda at: (counts[at], at))[: len(counts) - max_engines]
    few = "the smallest" if len(smallest) == 1 else f"the {len(smallest)} smallest"
    return dict.fromkeys(smallest, f"it is in {few} of {len(counts)} engines, max_engines is {max_engines}")
