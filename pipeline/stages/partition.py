"""partition: ``Validated`` → ``Partitioned``. The graph is cut into segments for engines and segments for PyTorch.

Each operator gets a depth: the number of times a path from the inputs to it changes between TensorRT and PyTorch. All
operators of one depth and kind form a segment. No segment can depend on itself, parallel branches share a segment, and
the number of segments is the least that any cut along depths allows. The cost is linear in the number of nodes.

Arithmetic on sizes belongs to no segment: engines derive it from the shapes of their inputs, PyTorch segments are given
its values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import torch

from pipeline.compose import stage
from pipeline.errors import Fallback, UnsupportedOperatorException, source_line
from pipeline.program import (
    READS_DATA,
    Partitioned,
    Port,
    Program,
    Segment,
    Validated,
    Verdict,
    expression,
    is_operator,
    port,
    shape_of,
)
from pipeline.recipes import qualified_name


@stage
def partition(validated: Validated) -> Partitioned:
    """Segments by depth. When something runs in PyTorch anyway, so do engines with fewer than ``min_block_size``
    operators, and the smallest ones beyond ``max_engines``."""
    program, settings = validated.program, validated.program.settings
    refused = {n: "; ".join(r.reason for r in v.reasons) for n, v in validated.verdicts.items() if not v.supported}
    operators = [n for n in program.graph.nodes if is_operator(n)]
    reasons = {n.name: refused[n.name] for n in operators if n.name in refused}
    if reasons and settings.require_full_compilation:
        raise UnsupportedOperatorException(_fallbacks(operators, reasons, validated), len(operators))
    while reasons:
        demoted = dict(_too_small(program, reasons, settings.min_block_size))
        demoted = demoted or dict(_too_many(program, reasons, settings.max_engines))
        if not demoted:
            break
        reasons.update(demoted)
    fallbacks = _fallbacks(operators, reasons, validated)
    groups = _groups(program, set(reasons))
    segments = tuple(_segment(program, kind, i, nodes) for i, (kind, nodes) in enumerate(groups))
    return Partitioned(program, segments, validated.verdicts, fallbacks)


def _fallbacks(operators: list[torch.fx.Node], reasons: dict[str, str], validated: Validated) -> tuple[Fallback, ...]:
    return tuple(_fallback(n, reasons[n.name], validated.verdicts[n.name]) for n in operators if n.name in reasons)


def _fallback(node: torch.fx.Node, reason: str, verdict: Verdict) -> Fallback:
    hint = "; ".join(dict.fromkeys(r.hint for r in verdict.reasons if r.hint))
    return Fallback(node.name, qualified_name(node.target), reason, hint, source_line(node))


def _engines(program: Program, reasons: Mapping[str, str]) -> list[list[torch.fx.Node]]:
    """The operators of each engine that there would be."""
    return [[n for n in nodes if is_operator(n)] for kind, nodes in _groups(program, set(reasons)) if kind == "engine"]


def _too_small(program: Program, reasons: Mapping[str, str], least: int) -> Iterator[tuple[str, str]]:
    for inside in _engines(program, reasons):
        if len(inside) < least:
            reason = f"its engine would have only {len(inside)} operators, min_block_size is {least}"
            yield from ((n.name, reason) for n in inside)


def _too_many(program: Program, reasons: Mapping[str, str], most: int | None) -> Iterator[tuple[str, str]]:
    """The operators of the smallest engine, if there are more than ``most``."""
    engines = _engines(program, reasons)
    if most is not None and len(engines) > most:
        reason = f"it is in the smallest of {len(engines)} engines, max_engines is {most}"
        yield from ((n.name, reason) for n in min(engines, key=len))


def _groups(program: Program, in_torch: set[str]) -> list[tuple[str, list[torch.fx.Node]]]:
    """The segments' kinds and nodes, in an order in which they can run."""
    depth: dict[torch.fx.Node, tuple[int, str]] = {}
    groups: dict[tuple[int, str], list[torch.fx.Node]] = defaultdict(list)
    for node in program.graph.nodes:
        before = [depth[n] for n in node.all_input_nodes if n in depth]
        if is_operator(node):
            kind = "torch" if node.name in in_torch else "engine"
            own = max((d + (k != kind) for d, k in before), default=0)
            depth[node] = (own, kind)
            groups[depth[node]].append(node)
        elif node.op == "call_function" and before:
            depth[node] = max(before)
            if isinstance(node.meta.get("val"), torch.Tensor):
                groups[depth[node]].append(node)
    return [(kind, groups[d, kind]) for d, kind in sorted(groups)]


def _segment(program: Program, kind: str, index: int, nodes: list[torch.fx.Node]) -> Segment:
    inside = set(nodes)
    read = list(dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in inside))
    constants = tuple(n.name for n in read if n.name in program.constants)
    tensors = [n for n in read if n.name not in program.constants and isinstance(n.meta.get("val"), torch.Tensor)]
    inputs = [port(n.name, n.meta["val"], program.symbols) for n in tensors]
    sizes = [n for n in read if isinstance(n.meta.get("val"), torch.SymInt)]
    if kind == "engine":
        inputs += _missing_symbols(program, nodes, sizes, inputs)
    else:
        inputs += [port(n.name, n.meta["val"], program.symbols) for n in sizes]
    outputs = [n for n in nodes if _is_value(n) and any(user not in inside for user in n.users)]
    return Segment(
        name=f"{kind}_{index}",
        kind="engine" if kind == "engine" else "torch",
        nodes=tuple(n.name for n in nodes),
        inputs=tuple(inputs),
        outputs=tuple(
            port(n.name, n.meta["val"], program.symbols) for n in outputs if not _only_sizes_leave(n, inside)
        ),
        constants=constants,
    )


def _is_value(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor | torch.SymInt)


def _only_sizes_leave(node: torch.fx.Node, inside: set[torch.fx.Node]) -> bool:
    """Whether the users outside only ask for the value's sizes, which are known without it."""
    outside = [u for u in node.users if u not in inside]
    return all(
        u.op == "call_function" and not is_operator(u) and isinstance(u.meta.get("val"), torch.SymInt) for u in outside
    )


def _missing_symbols(
    program: Program, nodes: list[torch.fx.Node], sizes: list[torch.fx.Node], inputs: list[Port]
) -> Iterator[Port]:
    """A symbolic int input for each symbol that the engine needs and cannot read off the shape of an input."""
    known = {str(d) for p in inputs for d in p.shape if not isinstance(d, int) and d.is_Symbol}
    known |= {str(s) for n in nodes for s in _made(n)}
    needed = dict.fromkeys(s for n in (*nodes, *sizes) for s in sorted(_symbols(n), key=str))
    by_name = {str(s): s for s in needed}
    for name in by_name:
        if name not in known:
            value = program.symbols[name]
            yield Port(name, torch.int64, (), (value,), "symint", by_name[name])


def _made(node: torch.fx.Node) -> set[object]:
    """The symbols that a node brings into being: sizes and numbers that depend on its data."""
    if not _depends_on_data(node):
        return set()
    return set(_symbols(node)) - {s for n in node.all_input_nodes for s in _symbols(n)}


def _depends_on_data(node: torch.fx.Node) -> bool:
    return node.target in READS_DATA or torch.Tag.dynamic_output_shape in getattr(node.target, "tags", ())


def _symbols(node: torch.fx.Node) -> Iterable[object]:
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else [value]
    for v in values:
        sizes = shape_of(v) if isinstance(v, torch.Tensor) else [expression(v)] if isinstance(v, torch.SymInt) else []
        for size in sizes:
            if not isinstance(size, int):
                yield from size.free_symbols
