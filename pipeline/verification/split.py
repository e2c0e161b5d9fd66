"""Partition a program so that only certain nodes run in TensorRT, to find out whether their results are wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from attrs import evolve

from pipeline.converters.declare import Rejection
from pipeline.frozen import FrozenDict
from pipeline.partitioning.assemble import Group, assemble
from pipeline.partitioning.flow import build_flow
from pipeline.partitioning.levels import unit_levels
from pipeline.partitioning.units import build_units
from pipeline.program import Partitioned, Validated, is_operator


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
