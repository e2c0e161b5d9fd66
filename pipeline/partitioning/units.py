"""Group operators that no cut may separate into units, and order the units.

A unit is a pattern that TensorRT fuses, a submodule that is not split, or one operator. Every member of a pattern but
the last is read only inside the pattern, so the whole pattern may run at the position of its last member. A submodule
is a sequence of operators and patterns in that order. So the dependencies between units never form a cycle.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby

from attrs import frozen

from pipeline.aten.collectives import is_collective, is_wait
from pipeline.aten.naming import module_path
from pipeline.aten.op_predicates import is_pointwise, moves_elements
from pipeline.aten.traits import Kind, op_kind
from pipeline.partitioning.flow import Edges, Flow, Node

MAX_PATTERN = 16
"""The maximum number of operators in a pattern."""


@frozen
class Units:
    """Groups of operators that share a segment, by number. ``order``: the units in an order in which they can run.
    ``same_side``: for each unit, itself and the units that must run in engines if it does, or in PyTorch if it does."""

    members: Edges
    unit_of: tuple[int, ...]
    before: Edges
    after: Edges
    order: tuple[int, ...]
    same_side: Edges


def build_units(flow: Flow, groups: Iterable[tuple[int, ...]], key: Callable[[int], object] = lambda i: None) -> Units:
    """Build units from groups of operators; every other operator is a unit by itself.

    key: returns a unit's key from an operator number. Units of one key, such as a submodule, run all in engines or all
    in PyTorch; for None, a unit runs in either.
    """
    together = [tuple(sorted(group)) for group in groups]
    grouped = {i for group in together for i in group}
    members = sorted([*together, *((i,) for i in range(len(flow.nodes)) if i not in grouped)])
    unit_of = [0] * len(flow.nodes)
    keys = [key(inside[0]) for inside in members]
    families: dict[object, list[int]] = defaultdict(list)
    for number, inside in enumerate(members):
        families[keys[number]].append(number)
        for i in inside:
            unit_of[i] = number

    def adjacent(edges: Edges) -> Edges:
        """Convert edges between operators to edges between units."""
        reached = ((n, [unit_of[j] for i in inside for j in edges[i]]) for n, inside in enumerate(members))
        return tuple(tuple(dict.fromkeys(other for other in others if other != n)) for n, others in reached)

    related = tuple((n,) if key is None else tuple(families[key]) for n, key in enumerate(keys))
    before, after = adjacent(flow.before), adjacent(flow.after)
    return Units(tuple(members), tuple(unit_of), before, after, _topological_order(before, after), related)


def _topological_order(before: Edges, after: Edges) -> tuple[int, ...]:
    """Return the units in an order to run them; ``before``, ``after``: those that each one needs, and that need it."""
    missing = [len(earlier) for earlier in before]
    ready = deque(number for number, count in enumerate(missing) if not count)
    order = []
    while ready:
        order.append(number := ready.popleft())
        for later in after[number]:
            missing[later] -= 1
            if not missing[later]:
                ready.append(later)
    assert len(order) == len(before), "units depend on each other in a cycle"
    return tuple(order)


def fused_patterns(flow: Flow, is_supported: Callable[[int], bool]) -> Iterator[tuple[int, ...]]:
    """Yield the patterns that TensorRT fuses and engines can run completely: a convolution or matmul with the norm and
    elementwise operators after it; the two matmuls of an attention with everything between them; and a collective with
    the operator that waits for it."""
    taken: set[int] = set()

    def free(i: int) -> bool:
        return i not in taken and is_supported(i)

    for i, node in enumerate(flow.nodes):
        if op_kind(node.target) in (Kind.CONVOLVES, Kind.MULTIPLIES, Kind.PROJECTS):
            found = (i,) if not free(i) else _attention_pattern(flow, i, free) or _epilogue_pattern(flow, i, free)
            if len(found) > 1:
                taken.update(found)
                yield found
        elif is_collective(node) and not is_wait(node) and all(map(is_supported, (i, *flow.after[i]))):
            yield (i, *flow.after[i])


def _epilogue_pattern(flow: Flow, start: int, is_free: Callable[[int], bool]) -> tuple[int, ...]:
    """Return the operator ``start``, a matmul or convolution, and the norms and elementwise operators after it that
    TensorRT fuses into it. ``is_free``: whether an operator, by number, may join (see `_following_groups`)."""
    found = [start]
    for step in _following_groups(flow, start, is_free):
        if not all(is_pointwise(flow.nodes[i]) or op_kind(flow.nodes[i].target) is Kind.SCALES for i in step):
            break
        found += step
    return tuple(found)


def _attention_pattern(flow: Flow, start: int, is_free: Callable[[int], bool]) -> tuple[int, ...]:
    """Return the operators from the matmul ``start`` through a softmax to a second matmul; () if there is no such
    chain, or if an operator may not join it (``is_free``, see `_following_groups`)."""
    found, normalised = [start], False
    if op_kind(flow.nodes[start].target) is not Kind.MULTIPLIES:
        return ()
    for step in _following_groups(flow, start, is_free):
        found += step
        last = flow.nodes[step[-1]]
        if op_kind(last.target) is Kind.SOFTENS and not normalised:
            normalised = True
        elif op_kind(last.target) is Kind.MULTIPLIES and normalised:
            return tuple(found)
        elif not (is_pointwise(last) or moves_elements(last)):
            return ()
    return ()


def _following_groups(flow: Flow, start: int, is_free: Callable[[int], bool]) -> Iterator[tuple[int, ...]]:
    """Yield groups of operators after ``start``, each the only reader of the previous result. A group is one operator,
    or several elementwise operators as in ``x * sigmoid(x)``, the last of which reads the results of all others.
    ``is_free``: whether an operator, by number, can run in an engine and is in no pattern of fused operators yet."""
    at = start
    for _ in range(MAX_PATTERN):
        readers = sorted(flow.after[at])
        if not readers or flow.is_returned[at] or not all(map(is_free, readers)):
            return
        *others, last = readers
        if any(flow.after[i] != (last,) or flow.is_returned[i] or not is_pointwise(flow.nodes[i]) for i in others):
            return
        yield tuple(readers)
        at = last


def unsplit_submodule(node: Node, depth: int = 1, pattern: str | None = None) -> str | None:
    """Return the path of the submodule that is not split and contains a node; None if there is none. By ``depth``: the
    first ``depth`` names of the path of the node's module (2: ``encoder.layer`` for a node in ``encoder.layer.0``), or
    the whole path if that is shorter. By ``pattern`` (``encoder.layer.?``): the outermost matching module around it."""
    names = module_path(node).split(".")
    prefixes = [".".join(names[: i + 1]) for i in range(len(names))]
    if pattern is None:
        return prefixes[min(depth, len(names)) - 1] or None
    return next((p for p in prefixes if p and fnmatchcase(p, pattern)), None)


Patterns = Sequence[tuple[int, ...]]


def pattern_start_of_moved_operators(submodule_of: Sequence[str | None], patterns: Patterns) -> dict[int, int]:
    """Return {operator: first operator of its pattern} for each operator whose pattern (operators that TensorRT fuses)
    begins in another submodule. The operator moves to that submodule, so no cut between submodules splits a pattern."""
    return {i: pattern[0] for pattern in patterns for i in pattern if submodule_of[i] != submodule_of[pattern[0]]}


def submodule_runs(submodule_of: Sequence[str | None], patterns: Patterns) -> Iterator[tuple[int, ...]]:
    """Yield the operators to keep together: consecutive operators of a submodule, or a pattern (operators that TensorRT
    fuses) outside submodules. A pattern takes the place of its last operator: others are read only inside it."""
    ends, inside = {pattern[-1]: pattern for pattern in patterns}, {i for pattern in patterns for i in pattern[:-1]}
    steps = [ends.get(i, (i,)) for i in range(len(submodule_of)) if i not in inside]
    for key, run in groupby(steps, lambda step: submodule_of[step[0]]):
        if key is None:
            yield from (step for step in run if len(step) > 1)
        else:
            yield tuple(i for step in run for i in step)


def torch_reasons(
    flow: Flow, submodule_of: Sequence[str | None], moved: Mapping[int, int], refused: Mapping[int, str]
) -> dict[int, str]:
    """Return {operator: reason} for operators that run in PyTorch because a ``refused`` one of their submodule does.
    ``moved``: operators that joined another submodule (see `pattern_start_of_moved_operators`)."""
    culprits = {key: flow.nodes[i].name for i in sorted(refused, reverse=True) if (key := submodule_of[i]) is not None}

    def why(i: int, key: str) -> str:
        reason = f"{key} stays in one segment, and its operator {culprits[key]} runs in PyTorch"
        return f"it is fused with {flow.nodes[moved[i]].name}: {reason}" if i in moved else reason

    return {i: why(i, key) for i, key in enumerate(submodule_of) if key in culprits and i not in refused}
