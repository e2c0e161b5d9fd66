"""Laws that hold for every partitioner and every program, whatever engines refuse."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import combinations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.aten.naming import module_path
from pipeline.partitioning.flow import build_flow, copied_nodes
from pipeline.partitioning.units import fused_patterns
from pipeline.program import Partitioned, Port, Segment
from pipeline.stages.partition import Partitioner, by_submodule, in_pieces, partition
from tests.partitioning.random_programs import INPUTS, Case, cases, run, whole

PARTITIONERS: tuple[Partitioner, ...] = (partition, by_submodule(2), by_submodule(pattern="block.[01]"))


def copied(case: Case) -> set[str]:
    """The operators that may be in several segments."""
    program, verdicts = case.validated.program, case.validated.verdicts
    return {n.name for n in copied_nodes(program, lambda n: verdicts[n.name].supported)}


def every_operator_is_in_one_segment(case: Case, partitioned: Partitioned) -> None:
    """Unless it is copied."""
    several, places = copied(case), Counter(name for s in partitioned.segments for name in s.nodes)
    for name in case.operators():
        assert places[name] >= 1 if name in several else places[name] == 1, name


def what_is_not_in_an_engine_has_a_reason(case: Case, partitioned: Partitioned) -> None:
    """And what engines refuse is not in one."""
    refused = {name for name in case.operators() if not case.validated.verdicts[name].supported}
    engines = {name for s in partitioned.engine_segments for name in s.nodes}
    assert not engines & refused
    assert {f.node for f in partitioned.fallbacks} == set(case.operators()) - engines
    assert all(f.reason for f in partitioned.fallbacks)


def engines_are_large_and_few(case: Case, partitioned: Partitioned) -> None:
    """Without a fallback there is one; else each has ``min_block_size`` operators, besides what is copied into it."""
    if not partitioned.fallbacks:
        assert [s.kind for s in partitioned.segments] == ["engine"]
        return
    limits, operators = partitioned.program.settings, set(case.operators()) - copied(case)
    sizes = [len(operators.intersection(s.nodes)) for s in partitioned.engine_segments]
    assert all(size >= limits.min_block_size for size in sizes)
    assert limits.max_engines is None or len(sizes) <= limits.max_engines


def segments_read_what_is_made(case: Case, partitioned: Partitioned) -> None:
    """In the order in which they are given."""
    known = set(INPUTS)
    for segment in partitioned.segments:
        assert {p.name for p in segment.inputs} <= known
        known |= {p.name for p in segment.outputs}


def values_are_those_of_the_program(case: Case, partitioned: Partitioned) -> None:
    """Run segment by segment, it gives what it gives uncut."""
    inputs = {name: torch.randn(4, 4) for name in INPUTS}
    for ours, theirs in zip(run(partitioned, inputs), whole(partitioned.program, inputs), strict=True):
        torch.testing.assert_close(ours, theirs)


def cuts_say_what_crosses(case: Case, partitioned: Partitioned) -> None:
    """Every tensor that a segment reads of another, and how many bytes it has."""
    by_name = {s.name: s for s in partitioned.segments}
    for cut in partitioned.cuts:
        made, read = by_name[cut.source].outputs, by_name[cut.target].inputs
        assert cut.tensors
        assert all(p in made and p in read for p in cut.tensors)
        assert cut.nbytes == cut.max_nbytes == sum(map(_nbytes, cut.tensors))
    read_of_others = [p for s in partitioned.segments for p in s.inputs if p.name not in INPUTS]
    assert len(read_of_others) == sum(len(c.tensors) for c in partitioned.cuts)


def _nbytes(port: Port) -> int:
    assert port.dtype is not None
    return math.prod(map(int, port.shape)) * port.dtype.itemsize


def no_two_engines_could_be_one(case: Case, partitioned: Partitioned) -> None:
    """A path from one to the other goes through a third segment."""
    for first, second in combinations(partitioned.engine_segments, 2):
        assert _through_another(partitioned, first, second), f"{first.name} and {second.name} could be one engine"


def _through_another(partitioned: Partitioned, first: Segment, second: Segment) -> bool:
    after = defaultdict(set)
    for cut in partitioned.cuts:
        after[cut.source].add(cut.target)
    reached, waiting = set[str](), list(after[first.name] - {second.name})
    while waiting:
        name = waiting.pop()
        waiting += after[name] - reached
        reached.add(name)
    return second.name in reached


def patterns_are_whole(case: Case, partitioned: Partitioned) -> None:
    """Wherever the borders of submodules are."""
    for pattern in case.patterns:
        inside = [s.name for s in partitioned.segments if set(pattern) & set(s.nodes)]
        assert len(inside) == 1, f"{pattern} is in {inside}"


LAWS: tuple[Callable[[Case, Partitioned], None], ...] = (
    every_operator_is_in_one_segment,
    what_is_not_in_an_engine_has_a_reason,
    engines_are_large_and_few,
    segments_read_what_is_made,
    values_are_those_of_the_program,
    cuts_say_what_crosses,
    no_two_engines_could_be_one,
    patterns_are_whole,
)


@settings(max_examples=50)
@given(cases())
def test_laws(case: Case) -> None:
    for partitioner in PARTITIONERS:
        partitioned = partitioner(case.validated)
        assert str(partitioner(case.validated)) == str(partitioned)
        for law in LAWS:
            law(case, partitioned)


@settings(max_examples=50)
@given(cases(), st.integers(1, 4))
def test_laws_of_pieces(case: Case, count: int) -> None:
    """Pieces of one engine follow each other, and are that engine together."""
    partitioned, uncut = in_pieces(count)(case.validated), partition(case.validated)
    for law in LAWS:
        if law not in (engines_are_large_and_few, no_two_engines_could_be_one):
            law(case, partitioned)
    pieces = iter(partitioned.segments)
    for segment in uncut.segments:
        left, found = {*segment.nodes} - copied(case), 0
        while left:
            piece = next(pieces)
            assert piece.kind == segment.kind and left.intersection(piece.nodes)
            left, found = left.difference(piece.nodes), found + 1
        assert found <= (count if segment.kind == "engine" else 1)


@settings(max_examples=50)
@given(cases())
def test_submodules_are_whole(case: Case) -> None:
    """What follows a product of another module, and only that, may go with the product."""
    partitioned = by_submodule(2)(case.validated)
    homes, kinds = _homes(case), defaultdict(set)
    for segment in partitioned.segments:
        for name in homes.keys() & segment.nodes:
            kinds[homes[name]].add(segment.kind)
    assert all(len(found) == 1 for path, found in kinds.items() if path), kinds


def _homes(case: Case) -> dict[str, str]:
    """The module of each operator that is not copied: its own, or that in which its pattern begins."""
    program, verdicts = case.validated.program, case.validated.verdicts
    seen = build_flow(program, copied_nodes(program, lambda n: verdicts[n.name].supported))
    homes = {n.name: module_path(n) for n in seen.nodes}
    for first, *others in fused_patterns(seen, lambda i: verdicts[seen.nodes[i].name].supported):
        homes |= dict.fromkeys((seen.nodes[i].name for i in others), homes[seen.nodes[first].name])
    return homes
