"""Split an engine's operators into several engines that run in order, at positions where few bytes cross."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from pipeline.partitioning.flow import Flow, Value
from pipeline.partitioning.units import Units


def split_evenly(flow: Flow, units: Units, operators: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Split the operators of one engine into up to ``count`` groups of about equal size, in the order in which the
    groups run. ``units``: the operators that must stay together.

    An even split has cuts at equal distances. Each cut moves by less than half a group, to the position at which the
    fewest bytes cross; of several such positions, to the nearest.
    """
    own = sorted({units.unit_of[i] for i in operators}, key=lambda unit: units.members[unit][-1])
    ends = list(accumulate(len(units.members[unit]) for unit in own))
    bytes_at = _bytes_crossing_each_cut(flow, units, own)
    borders = [0]
    for even in (len(operators) * n / count for n in range(1, count)):
        near = [at for at in range(borders[-1] + 1, len(own)) if abs(ends[at - 1] - even) < len(operators) / count / 2]
        if near:
            borders.append(min(near, key=lambda at: (bytes_at[at], abs(ends[at - 1] - even))))
    parts = [own[a:b] for a, b in pairwise([*borders, len(own)])]
    return [tuple(sorted(i for unit in part for i in units.members[unit])) for part in parts]


def split_by_submodule(
    flow: Flow,
    units: Units,
    operators: Sequence[int],
    submodule_of: Sequence[str | None],
    cache_updates: frozenset[int] = frozenset(),
) -> list[tuple[int, ...]]:
    """Split the operators of one engine between submodules, and within a submodule after its last cache update.

    ``submodule_of`` has each operator's submodule; an operator with None belongs to the submodule before it, or else to
    the first. ``cache_updates`` are the operators that update a cache: if a matmul reads the cache in the same engine,
    TensorRT first copies the cache (docs/tensorrt.md, "Numbers"). Later operators of the submodule get another engine,
    except for cheap ones that rescale or cast a tensor from the first engine, such as a query: they stay in the first,
    as part of the kernel that computes the tensor. ``units``: the operators that must stay together.
    """
    own = sorted({units.unit_of[i] for i in operators}, key=lambda unit: units.members[unit][-1])
    runs, current = [0], None
    for at, key in enumerate(submodule_of[units.members[unit][0]] for unit in own):
        if None not in (key, current) and key != current:
            runs.append(at)
        current = current if key is None else key
    borders = {0}
    for start, end in pairwise([*runs, len(own)]):
        behind = [at + 1 for at in range(start, end) if not cache_updates.isdisjoint(units.members[own[at]])]
        if not behind or behind[-1] == end:
            borders.add(start)
            continue
        before = frozenset(i for unit in own[start : behind[-1]] for i in units.members[unit])
        early = _units_to_move_before_cut(flow, units, own[behind[-1] : end], cache_updates, before)
        own[behind[-1] : end] = [*early, *(unit for unit in own[behind[-1] : end] if unit not in early)]
        borders.add(behind[-1] + len(early))
    parts = [own[a:b] for a, b in pairwise(sorted(borders | {len(own)}))]
    return [tuple(sorted(i for unit in part for i in units.members[unit])) for part in parts]


def _units_to_move_before_cut(
    flow: Flow, units: Units, units_after_cut: Sequence[int], cache_updates: frozenset[int], before: frozenset[int]
) -> list[int]:
    """Return the units (operators that stay together) to move from after a cut to before it: chains of cheap operators
    whose only input is from before the cut and not a cache update, and whose result is not larger than the input. A
    unit that also depends on other units after the cut stays. ``before``: the submodule's operators before the cut."""
    chains: dict[int | None, tuple[int, list[int]]] = {}
    found: list[int] = []
    for unit in units_after_cut:
        change = _single_input_and_result(flow, units.members[unit], before)
        if change is None:
            continue
        source, result = change
        most, chain = chains.get(source.producer, (source.nbytes, []))
        if (
            source.producer is None
            or source.producer in cache_updates
            or not set(units.before[unit]).isdisjoint({*units_after_cut} - {*chain})
        ):
            continue
        chains.pop(source.producer, None)
        chains[result.producer] = most, [*chain, unit]
        if result.nbytes <= most:
            found += [each for each in (*chain, unit) if each not in found]
    return found


def _single_input_and_result(flow: Flow, members: Sequence[int], before: frozenset[int]) -> tuple[Value, Value] | None:
    """Return (input, result) of the operators ``members`` if they are cheap, read one value and return one value, and
    if no operator except them and those in ``before`` reads the input; else None."""
    own = {v for i in members for v in flow.produced[i]}
    read = [flow.values[v] for v in {v for i in members for v in flow.read[i]} - own]
    made = [flow.values[v] for v in own if not set(flow.values[v].readers) <= set(members)]
    cheap = all(flow.is_cheap[i] for i in members)
    if cheap and len(read) == len(made) == 1 and set(read[0].readers) <= before.union(members):
        return read[0], made[0]
    return None


def _bytes_crossing_each_cut(flow: Flow, units: Units, order: Sequence[int]) -> list[int]:
    """Return, for each position in a sequence of units, the bytes that units before it pass to units from there on."""
    place = {i: at for at, unit in enumerate(order) for i in units.members[unit]}
    change = [0] * (len(order) + 1)
    for value in flow.values:
        first = -1 if value.producer is None else place.get(value.producer, -1)
        last = max((place[i] for i in value.readers if i in place), default=-1)
        if 0 <= first < last:
            change[first + 1] += value.nbytes
            change[last + 1] -= value.nbytes
    return list(accumulate(change))
