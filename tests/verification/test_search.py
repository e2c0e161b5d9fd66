"""Laws of the search: it finds smallest sets, all of them, in few questions."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from pipeline.verification.search import Predicate, find_wrong_sets

NODES = [f"n{i}" for i in range(300)]


@st.composite
def faults(draw: st.DrawFn) -> tuple[list[str], list[frozenset[str]]]:
    """Nodes, and sets of which each makes what holds it wrong."""
    nodes = NODES[: draw(st.integers(1, 300))]
    some = st.frozensets(st.sampled_from(nodes), min_size=1, max_size=3)
    return nodes, draw(st.lists(some, min_size=1, max_size=3))


@given(faults())
def test_smallest_sets_are_found_until_nothing_is_wrong(case: tuple[list[str], list[frozenset[str]]]) -> None:
    nodes, sets = case

    def wrong(asked: frozenset[str]) -> bool:
        return any(each <= asked for each in sets)

    found = find_wrong_sets(nodes, Predicate(wrong, 10_000))
    assert found.complete
    assert not wrong(frozenset(nodes) - {n for each in found.sets for n in each})
    for each in map(frozenset, found.sets):
        assert wrong(each)
        assert not any(wrong(each - {n}) for n in each)


@given(st.integers(1, 300), st.data())
def test_one_node_takes_log2_and_four_questions(count: int, data: st.DataObject) -> None:
    node = data.draw(st.sampled_from(NODES[:count]))
    questions = Predicate(lambda asked: node in asked, 10_000)
    assert find_wrong_sets(NODES[:count], questions).sets == ((node,),)
    assert questions.count <= math.log2(count) + 4


@given(st.integers(2, 300), st.data())
def test_the_limit_is_kept_and_what_is_found_is_wrong(count: int, data: st.DataObject) -> None:
    node, limit = data.draw(st.sampled_from(NODES[:count])), data.draw(st.integers(1, 5))
    questions = Predicate(lambda asked: node in asked, limit)
    found = find_wrong_sets(NODES[:count], questions)
    assert questions.count <= limit
    assert found.complete or all(node in each for each in found.sets)


def test_what_cannot_be_cut_is_one() -> None:
    """Cuts between n3 and n6 do not compile."""

    def ask(asked: frozenset[str]) -> bool | None:
        inside = asked & {"n3", "n4", "n5", "n6"}
        return None if 0 < len(inside) < 4 else "n5" in asked

    found = find_wrong_sets(NODES[:40], Predicate(ask, 100))
    assert found.sets == (("n3", "n4", "n5", "n6"),)
    assert found.complete


def test_nothing_is_known_where_the_rest_cannot_be_tried() -> None:
    found = find_wrong_sets(NODES[:4], Predicate(lambda asked: "n1" in asked or None, 100))
    assert not found.complete
