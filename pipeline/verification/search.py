"""Search for the smallest sets of nodes that are wrong, given a function that says whether a set of nodes is wrong.

Nodes are in execution order. A question is a call of that function. The last node of the shortest wrong prefix belongs
to the fault: bisection finds it with log2(n) questions. If this node alone is wrong, it is the fault. If not, it is
wrong together with earlier nodes: the search repeats on these until the collected nodes alone are wrong. The last
question is about all nodes without the fault: if they are wrong, there is another fault. Finding a single faulty node
needs 1 + log2(n) + 2 questions, rounded up: the whole program, the bisection, the node alone, the rest without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from attrs import define, field, frozen

from pipeline.errors import PipelineError

IsWrong = Callable[[frozenset[str]], bool | None]
"""A predicate on sets of nodes: whether a set is wrong; None if the set cannot be tried."""


class OutOfBuildsError(PipelineError):
    """The search reached its limit of compilations, each of which tests whether a set of nodes is wrong."""


@define
class Predicate:
    """A predicate on sets of nodes that caches answers, counts calls, and raises `OutOfBuildsError` beyond a limit."""

    is_wrong: IsWrong
    limit: int
    known: dict[frozenset[str], bool | None] = field(factory=dict)
    count: int = 0

    def __call__(self, nodes: Iterable[str]) -> bool | None:
        subset = frozenset(nodes)
        if not subset:
            return False
        if subset not in self.known:
            if self.count >= self.limit:
                raise OutOfBuildsError(f"the search reached its limit of {self.limit} builds: raise max_builds")
            self.count += 1
            self.known[subset] = self.is_wrong(subset)
        return self.known[subset]


@frozen
class SearchResult:
    """The result of a search: the sets of nodes with wrong results, in the order found, and whether these are all."""

    sets: tuple[tuple[str, ...], ...]
    complete: bool


def find_wrong_sets(nodes: Sequence[str], is_wrong: Predicate) -> SearchResult:
    """Return the smallest disjoint sets of nodes for which ``is_wrong`` is True, given all nodes in execution order."""
    sets: list[tuple[str, ...]] = []
    rest, right_prefix, complete = list(nodes), 0, True
    wrong: bool | None = None
    try:
        while complete and (wrong := is_wrong(rest)):
            found, right_prefix, complete = _reduce_to_smallest(rest, right_prefix, is_wrong)
            sets.append(tuple(n for n in rest if n in found))
            rest = [n for n in rest if n not in found]
    except OutOfBuildsError:
        return SearchResult(tuple(sets), False)
    return SearchResult(tuple(sets), wrong is False)


def find_smallest(nodes: Sequence[str], is_wrong: Predicate) -> tuple[str, ...]:
    """Return a smallest subset of ``nodes`` for which ``is_wrong`` is True. If ``is_wrong`` may not be called any more
    (``is_wrong.limit``), return the smallest one found so far."""
    found, *_ = _reduce_to_smallest(nodes, 0, is_wrong)
    return tuple(node for node in nodes if node in found)


def _reduce_to_smallest(
    nodes: Sequence[str], right_prefix: int, is_wrong: Predicate
) -> tuple[frozenset[str], int, bool]:
    """Find a smallest subset of ``nodes`` for which ``is_wrong`` is True, as it is for all ``nodes``. Return it;
    ``right_prefix`` for the next search, among the nodes that are not in the subset; and False if the limit of calls
    was reached, so that the subset may be larger than necessary.

    right_prefix: a number of nodes at the start; for these together, ``is_wrong`` is known to be False.
    """
    collected: list[str] = []
    candidates = list(nodes)
    try:
        low, high = _find_border(candidates, right_prefix, collected, is_wrong)
        collected, candidates, right_prefix = candidates[low:high], candidates[:low][::-1], low
        while candidates and not is_wrong(collected):
            low, high = _find_border(candidates, 0, collected, is_wrong)
            collected, candidates = [*collected, *candidates[low:high]], candidates[:low]
    except OutOfBuildsError:
        return frozenset([*collected, *candidates]), 0, False
    return frozenset(collected), sum(node not in collected for node in nodes[:right_prefix]), True


def _find_border(candidates: Sequence[str], low: int, collected: Sequence[str], is_wrong: Predicate) -> tuple[int, int]:
    """Find, by bisection, the number n at which ``is_wrong([*collected, *candidates[:n]])`` changes from False to True.
    Return two numbers: one for which it is False, and a larger one for which it is True. They differ by 1, unless
    ``is_wrong`` returns None (unknown) for all numbers in between. ``low``: a number for which it is False."""
    high = len(candidates)
    while high - low > 1:
        for middle in _integers_from_middle(low, high):
            wrong = is_wrong([*collected, *candidates[:middle]])
            if wrong is not None:
                low, high = (low, middle) if wrong else (middle, high)
                break
        else:
            return low, high
    return low, high


def _integers_from_middle(low: int, high: int) -> list[int]:
    """Return the integers between ``low`` and ``high``, ordered from the middle outwards."""
    middle = (low + high) // 2
    return sorted(range(low + 1, high), key=lambda index: abs(index - middle))
