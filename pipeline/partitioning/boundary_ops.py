"""Move cheap operators at the boundaries between engines and PyTorch to the side with which fewer bytes cross.

A cheap operator (a view, a cast, an elementwise operator) moves from an engine to PyTorch if only PyTorch reads it, or
if it reads only results of PyTorch, and the crossing values become smaller: an ``expand`` runs after the cut, a cast to
half precision before it, and a single ``reshape`` between PyTorch operators does not become an engine. Elementwise
operators move only next to an operator that PyTorch runs for another reason: engines fuse them, PyTorch does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from pipeline.partitioning.flow import Flow
from pipeline.partitioning.levels import operators_per_engine
from pipeline.partitioning.units import Units


def bytes_saved_by_operator_in_torch(
    flow: Flow,
    units: Units,
    in_torch: Sequence[bool],
    levels: Sequence[int],
    min_size: int,
    moved_before: Collection[int] = (),
) -> dict[int, int]:
    """Return {operator: saved bytes} for the cheap operators to move from engines to PyTorch so that fewer bytes cross
    between segments. Operators move in groups, and each has the bytes that its whole group saves.

    An engine that has ``min_size`` operators does not shrink below that, unless it loses all. ``in_torch`` and
    ``levels``: for each unit (operators that share a segment), whether it runs in PyTorch, and its segment's number in
    the order of execution. ``moved_before``: the operators that earlier calls of this function moved to PyTorch.
    """
    sides = OperatorSides(flow, [in_torch[unit] for unit in units.unit_of], frozenset(moved_before))
    room = operators_per_engine(units, in_torch, levels)
    moved: dict[int, int] = {}
    for i in (*reversed(range(len(flow.nodes))), *range(len(flow.nodes))):
        if i not in moved and _can_move_to_torch(flow, units, sides, i):
            saved, cone = _move_best_group(flow, units, sides, i)
            taken = Counter(levels[units.unit_of[j]] for j in cone)
            if cone and not any(0 < room[at] - count < min_size <= room[at] for at, count in taken.items()):
                room.subtract(taken)
                moved |= dict.fromkeys(cone, saved)
            else:
                for j in cone:
                    sides.change_side(j, to_torch=False)
    return moved


def _can_move_to_torch(flow: Flow, units: Units, sides: OperatorSides, i: int) -> bool:
    """Return whether operator ``i``, by its number in ``flow``, may move from an engine to PyTorch: it is cheap, alone
    in its unit, and PyTorch runs all its readers or all operators that it reads (``sides``)."""
    if sides.in_torch[i] or not flow.is_cheap[i]:
        return False
    unit = units.unit_of[i]
    if len(units.members[unit]) > 1 or len(units.same_side[unit]) > 1:
        return False
    return (sides.feeds_only_torch(i) or sides.reads_only_torch(i)) and (flow.moves_data[i] or sides.touches_fixed(i))


def _move_best_group(flow: Flow, units: Units, sides: OperatorSides, start: int) -> tuple[int, list[int]]:
    """Move operator ``start`` to PyTorch with the neighbours that save the most bytes between engines and PyTorch.
    Return (saved bytes, moved operators), or (0, []) if no move saves bytes."""
    cone, saved, best, length = [], 0, 0, 0
    for i in _movable_operators(flow, units, sides, start):
        saved -= sides.change_side(i, to_torch=True)
        cone.append(i)
        if saved > best:
            best, length = saved, len(cone)
    for i in reversed(cone[length:]):
        sides.change_side(i, to_torch=False)
    return best, cone[:length]


MAX_MOVED_TOGETHER = 32
"""The maximum number of operators that `_move_best_group` moves together."""


def _movable_operators(flow: Flow, units: Units, sides: OperatorSides, start: int) -> Iterator[int]:
    """Yield ``start`` and then operators that may follow it to PyTorch; the caller moves each before it takes the next.
    They are the producers, and their producers, if PyTorch runs all readers of ``start``; else the readers."""
    back = sides.feeds_only_torch(start)
    waiting, seen = [start], set[int]()
    while waiting and len(seen) < MAX_MOVED_TOGETHER:
        i = waiting.pop()
        ready = sides.feeds_only_torch(i) if back else sides.reads_only_torch(i)
        if i not in seen and ready and _can_move_to_torch(flow, units, sides, i):
            seen.add(i)
            yield i
            waiting += flow.before[i] if back else flow.after[i]


class OperatorSides:
    """The side on which each operator runs, engine or PyTorch; `change_side` returns the increase in crossing bytes.

    The program's inputs count as in an engine, so an operator that reads them and can run in an engine stays in it.
    """

    def __init__(self, flow: Flow, in_torch: list[bool], moved: frozenset[int] = frozenset()) -> None:
        self.flow, self.in_torch = flow, in_torch
        self.fixed_in_torch = [inside and i not in moved for i, inside in enumerate(in_torch)]
        self.readers = [sum(in_torch[i] for i in value.readers) for value in flow.values]
        self.later = [sum(in_torch[j] for j in later) for later in flow.after]
        self.earlier = [sum(in_torch[j] for j in earlier) for earlier in flow.before]

    def feeds_only_torch(self, operator: int) -> bool:
        """Return whether an operator's results have readers, and all readers run in PyTorch."""
        return 0 < self.later[operator] == len(self.flow.after[operator])

    def reads_only_torch(self, operator: int) -> bool:
        """Return whether an operator has dependencies, and all of them run in PyTorch."""
        return 0 < self.earlier[operator] == len(self.flow.before[operator])

    def touches_fixed(self, operator: int) -> bool:
        """Return whether an operator reads or feeds one that runs in PyTorch anyway, not because that saves bytes."""
        return any(self.fixed_in_torch[j] for j in (*self.flow.before[operator], *self.flow.after[operator]))

    def change_side(self, operator: int, *, to_torch: bool) -> int:
        """Move an operator to PyTorch or to an engine; return by how much the crossing bytes increase."""
        touched = dict.fromkeys((*self.flow.produced[operator], *self.flow.read[operator]))
        before = sum(map(self._crossing_bytes, touched))
        self.in_torch[operator] = to_torch
        step = 1 if to_torch else -1
        for value in self.flow.read[operator]:
            self.readers[value] += step
        for j in self.flow.before[operator]:
            self.later[j] += step
        for j in self.flow.after[operator]:
            self.earlier[j] += step
        return sum(map(self._crossing_bytes, touched)) - before

    def _crossing_bytes(self, value_index: int) -> int:
        """Return the bytes of a value if it crosses between engines and PyTorch; else 0."""
        value = self.flow.values[value_index]
        if value.producer is not None and self.in_torch[value.producer]:
            return value.nbytes if self.readers[value_index] < len(value.readers) else 0
        return value.nbytes if self.readers[value_index] else 0
