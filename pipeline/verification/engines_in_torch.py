"""Replace engines of a program by PyTorch segments, or the whole program by its captured operators in PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TypeVar

from attrs import evolve

from pipeline.compiled import Compiled, RefitMap
from pipeline.converters.declare import Rejection
from pipeline.errors import source_line
from pipeline.frozen import FrozenDict
from pipeline.partitioning.assemble import Group, assemble, cuts
from pipeline.program import Partitioned, Segment, Validated, Verdict, is_operator
from pipeline.recipes import qualified_name
from pipeline.verification.split import refused

T = TypeVar("T")


def in_torch(compiled: Compiled, reasons: Mapping[str, Rejection]) -> Compiled:
    """Return a program in which these engines are replaced by PyTorch segments, each with its reason. An engine of one
    optimization profile is replaced in that profile. Other engines stay.

    Raises:
        ValueError: a segment has no operator of its own, or the borders of another segment would change.
    """
    before = compiled.partitioned
    forms = [tuple(same) for _, same in groupby(before.segments, lambda segment: segment.nodes)]
    validated, groups = _groups(before, forms, reasons)
    assembled = assemble(validated, groups, {})
    if [s.nodes for s in assembled.segments] != [first.nodes for first, *_ in forms]:
        raise ValueError("a segment has no operator of its own, so engines would get other names")
    segments = tuple(
        _read_in_place(segment, made) if segment.name in reasons else segment
        for same, made in zip(forms, assembled.segments, strict=True)
        for segment in same
    )
    inside = {name for segment in segments if segment.kind == "engine" for name in segment.nodes}
    verdicts = {n: before.verdicts[n] if n in inside else verdict for n, verdict in assembled.verdicts.items()}
    partitioned = evolve(assembled, segments=segments, verdicts=FrozenDict(verdicts), cuts=tuple(cuts(segments)))
    names = {segment.name for segment in segments if segment.kind == "engine"}
    networks = tuple(network for network in compiled.networks if network.name in names)
    used = {weight.name for network in networks for weight in network.weights}

    def left(rows: Mapping[str, T]) -> FrozenDict[str, T]:
        return FrozenDict({name: value for name, value in rows.items() if name in used})

    return evolve(
        compiled,
        partitioned=partitioned,
        networks=networks,
        engines=tuple(engine for engine in compiled.engines if engine.name in names),
        refit_map=RefitMap(left(compiled.refit_map.recipes), left(compiled.refit_map.computed)),
        literals=left(compiled.literals),
    )


def captured_in_torch(compiled: Compiled, reason: Rejection) -> Compiled:
    """Return the program before `decompose`, with the same parameters, as a single PyTorch segment.

    Raises:
        ValueError: there is no such program, or the settings compute float64 in float32.
    """
    made, source = compiled.program, compiled.program.source
    if source is None or made.settings.truncate_double:
        raise ValueError("there is no captured program that computes in the same dtypes")
    program = evolve(source, parameters=made.parameters, examples=made.examples, source=source, origin=made.origin)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    verdicts = (Verdict(n.name, qualified_name(n.target), None, (reason,), source_line(n)) for n in calls)
    validated = Validated(program, FrozenDict({verdict.node: verdict for verdict in verdicts}))
    operators = [node.name for node in calls if is_operator(node)]
    return Compiled(assemble(validated, [("torch", operators)], {}), (), (), RefitMap(), FrozenDict())


def joined(reasons: Sequence[Rejection]) -> Rejection:
    """Join several reasons with the same hint into one."""
    return Rejection("; ".join(dict.fromkeys(each.reason for each in reasons)), reasons[0].hint)


def _groups(
    before: Partitioned, forms: Sequence[Sequence[Segment]], reasons: Mapping[str, Rejection]
) -> tuple[Validated, list[Group]]:
    """Return each segment's operators (once for all profiles), and the verdicts by which some run in PyTorch."""
    operators = {node.name for node in before.program.graph.nodes if is_operator(node)}
    counts = Counter(name for first, *_ in forms for name in first.nodes)
    groups: list[Group] = []
    rejections = dict[str, Rejection]()
    for same in forms:
        own = [name for name in same[0].nodes if name in operators and counts[name] == 1]
        given = [reasons[segment.name] for segment in same if segment.name in reasons]
        if given:
            rejections |= dict.fromkeys(own, joined(given))
        groups.append(("torch" if given else same[0].kind, own))
    return refused(Validated(before.program, before.verdicts), rejections), groups


def _read_in_place(engine: Segment, made: Segment) -> Segment:
    """Return an engine's PyTorch segment, which has the engine's profile and reads the same weights in place."""
    name, shared = engine.name.replace("engine", "torch", 1), {p.name: p for p in engine.inputs}
    placed = [shared[name] for name in made.constants if name in shared]
    own = tuple(name for name in made.constants if name not in shared)
    return evolve(made, name=name, inputs=(*made.inputs, *placed), constants=own, profile=engine.profile)
