"""Choose what runs in PyTorch: replace some engines, the whole program, or all operators but some under suspicion."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TypeVar

from attrs import evolve

from pipeline.aten.graphs import copy_graph
from pipeline.aten.op_predicates import has_randomness
from pipeline.compiled import Compiled, RefitMap
from pipeline.converters.declare import Rejection
from pipeline.errors import source_line
from pipeline.frozen import FrozenDict
from pipeline.partitioning.assemble import Group, assemble, cuts
from pipeline.partitioning.flow import build_flow
from pipeline.partitioning.levels import unit_levels
from pipeline.partitioning.units import build_units
from pipeline.program import Partitioned, Program, Segment, Validated, Verdict, is_operator
from pipeline.recipes import qualified_name

T = TypeVar("T")


def replace_engines(compiled: Compiled, reasons: Mapping[str, Rejection]) -> Compiled:
    """Return a program in which these engines are replaced by PyTorch segments. ``reasons`` has a reason for each
    replaced engine, by name; all other engines are kept. An engine for one optimization profile is replaced only in
    that profile.

    Raises:
        ValueError: a segment has no operator of its own, or the inputs or outputs of another segment would change.
    """
    before = compiled.partitioned
    segments_by_nodes = [tuple(variants) for _, variants in groupby(before.segments, lambda segment: segment.nodes)]
    validated, groups = _operator_groups(before, segments_by_nodes, reasons)
    assembled = assemble(validated, groups, {})
    if [s.nodes for s in assembled.segments] != [first.nodes for first, *_ in segments_by_nodes]:
        raise ValueError("cannot replace these engines: a segment whose operators are all copies would become empty")
    segments = tuple(
        _fit_in_place_of_engine(torch_segment, segment) if segment.name in reasons else segment
        for variants, torch_segment in zip(segments_by_nodes, assembled.segments, strict=True)
        for segment in variants
    )
    inside = {name for segment in segments if segment.kind == "engine" for name in segment.nodes}
    verdicts = {n: before.verdicts[n] if n in inside else verdict for n, verdict in assembled.verdicts.items()}
    partitioned = evolve(assembled, segments=segments, verdicts=FrozenDict(verdicts), cuts=tuple(cuts(segments)))
    names = {segment.name for segment in segments if segment.kind == "engine"}
    networks = tuple(network for network in compiled.networks if network.name in names)
    used = {weight.name for network in networks for weight in network.weights}

    def keep_used(rows: Mapping[str, T]) -> FrozenDict[str, T]:
        return FrozenDict({name: value for name, value in rows.items() if name in used})

    return evolve(
        compiled,
        partitioned=partitioned,
        networks=networks,
        engines=tuple(engine for engine in compiled.engines if engine.name in names),
        refit_map=RefitMap(keep_used(compiled.refit_map.recipes), keep_used(compiled.refit_map.computed)),
        literals=keep_used(compiled.literals),
    )


def captured_program_in_torch(compiled: Compiled, reason: Rejection) -> Compiled:
    """Return a program that runs the captured operators (before `decompose`) in a single PyTorch segment, with the same
    parameters.

    Raises:
        ValueError: the program has no captured graph, or the setting ``truncate_double`` is True.
    """
    ours, source = compiled.program, compiled.program.source
    if source is None or ours.settings.truncate_double:
        why = "is missing" if source is None else "may compute in float64 what engines compute in float32"
        raise ValueError(f"PyTorch cannot run the captured graph in place of the engines: it {why}")
    program = evolve(source, parameters=ours.parameters, examples=ours.examples, source=source, origin=ours.origin)
    program = _without_unread_random_numbers(program)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    verdicts = (Verdict(n.name, qualified_name(n.target), None, (reason,), source_line(n)) for n in calls)
    validated = Validated(program, FrozenDict({verdict.node: verdict for verdict in verdicts}))
    operators = [node.name for node in calls if is_operator(node)]
    return Compiled(assemble(validated, [("torch", operators)], {}), (), (), RefitMap(), FrozenDict())


def _without_unread_random_numbers(program: Program) -> Program:
    """Return the program without random numbers that nothing reads (layer dropout), which torch.compile and `decompose`
    drop, too. torch.export keeps them before torch 2.13."""
    unread = {node.name for node in program.graph.nodes if has_randomness(node) and not node.users}
    if not unread:
        return program
    graph = copy_graph(program.graph)
    for node in [node for node in graph.nodes if node.name in unread]:
        graph.erase_node(node)
    return program.with_graph(graph)


def put_in_engines(partitioned: Partitioned, nodes: frozenset[str]) -> Partitioned:
    """Return the same program with these operators in engines and all other operators in PyTorch.

    Exactly these nodes run in TensorRT: no node is moved or copied. There are as few engines as the order allows.
    """
    program = partitioned.program
    outside = {n.name for n in program.graph.nodes if is_operator(n)} - nodes
    reason = Rejection("kept in PyTorch during this trial of the search for wrong operators")
    validated = reject_nodes(Validated(program, partitioned.verdicts), dict.fromkeys(outside, reason))
    graph = build_flow(program, frozenset())
    operators = build_units(graph, ())
    in_torch = [graph.nodes[members[0]].name not in nodes for members in operators.members]
    groups: dict[int, list[int]] = defaultdict(list)
    for unit, level in enumerate(unit_levels(graph, operators, in_torch)):
        groups[level] += operators.members[unit]
    groups_by_kind: list[Group] = [
        ("engine" if level % 2 else "torch", [graph.nodes[i].name for i in sorted(groups[level])])
        for level in sorted(groups)
    ]
    return assemble(validated, groups_by_kind, {})


def reject_nodes(validated: Validated, reasons: Mapping[str, Rejection]) -> Validated:
    """Return verdicts that reject the nodes named in ``reasons``, each for its reason, so that they run in PyTorch."""
    verdicts = {
        name: evolve(v, choice=None, reasons=(*v.reasons, reasons[name])) if name in reasons and v.supported else v
        for name, v in validated.verdicts.items()
    }
    return evolve(validated, verdicts=FrozenDict(verdicts))


def join_rejections(reasons: Sequence[Rejection]) -> Rejection:
    """Return one rejection with all distinct reasons and the hint of the first; callers pass equal hints."""
    return Rejection("; ".join(dict.fromkeys(rejection.reason for rejection in reasons)), reasons[0].hint)


def _operator_groups(
    before: Partitioned, segments_by_nodes: Sequence[Sequence[Segment]], reasons: Mapping[str, Rejection]
) -> tuple[Validated, list[Group]]:
    """Return the arguments for `assemble` that turn the engines in ``reasons`` into PyTorch segments: the program with
    verdicts that reject these engines' operators; and for each item of ``segments_by_nodes`` (segments with the same
    nodes, for different optimization profiles), the group ``("torch" or "engine", operator names)``."""
    operators = {node.name for node in before.program.graph.nodes if is_operator(node)}
    counts = Counter(name for first, *_ in segments_by_nodes for name in first.nodes)
    groups: list[Group] = []
    rejections = dict[str, Rejection]()
    for variants in segments_by_nodes:
        operator_names = [name for name in variants[0].nodes if name in operators and counts[name] == 1]
        rejected = [reasons[segment.name] for segment in variants if segment.name in reasons]
        if rejected:
            rejections |= dict.fromkeys(operator_names, join_rejections(rejected))
        groups.append(("torch" if rejected else variants[0].kind, operator_names))
    return reject_nodes(Validated(before.program, before.verdicts), rejections), groups


def _fit_in_place_of_engine(torch_segment: Segment, engine: Segment) -> Segment:
    """Return ``torch_segment`` with what it must share with the ``engine`` that it replaces: the optimization profile,
    the name (``torch_0`` for ``engine_0``), and inputs. A constant that is an input of the engine becomes an input."""
    name, shared = engine.name.replace("engine", "torch", 1), {p.name: p for p in engine.inputs}
    inputs = (*torch_segment.inputs, *(shared[name] for name in torch_segment.constants if name in shared))
    constants = tuple(name for name in torch_segment.constants if name not in shared)
    return evolve(torch_segment, name=name, inputs=inputs, constants=constants, profile=engine.profile)
