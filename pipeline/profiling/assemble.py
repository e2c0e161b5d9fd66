"""Create a ``Profile`` from measurements: the median time of each layer, and the share of each node in that time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from statistics import median

from attrs import evolve, field, frozen

from pipeline.aten.naming import module_path, node_name
from pipeline.compiled import Compiled
from pipeline.errors import source_line_in
from pipeline.network.kernels import Kernel, all_steps
from pipeline.profiling.kernels import Span, most_common_runs, time_rows
from pipeline.profiling.matching import match_rows
from pipeline.program import Segment, is_operator
from pipeline.recipes import qualified_name
from pipeline.records.profile import LayerTime, NodeTime, Profile, SegmentTime

Rows = Sequence[tuple[str, float]]
"""The rows that TensorRT's profiler reports for one run: a name and milliseconds for each."""


@frozen
class MeasuredTimes:
    """The measured GPU times of a program, in milliseconds, one for each run.

    segments: the times of each segment as a whole, by name. layers: by engine and run, the rows of TensorRT's profiler.
        metadata: by engine and row, the names of the network's layers, from the engine inspector. kernels: by segment
        and run, the GPU kernels. calls: the times of whole calls without CUDA graphs. graphs: the times of calls with
        CUDA graphs; empty if capture failed, for the reason in ``no_graph``.
    """

    segments: Mapping[str, Sequence[float]]
    layers: Mapping[str, Sequence[Rows]] = field(factory=dict)
    metadata: Mapping[str, Mapping[str, Sequence[str]]] = field(factory=dict)
    kernels: Mapping[str, Sequence[Sequence[Span]]] = field(factory=dict)
    calls: Sequence[float] = ()
    graphs: Sequence[float] = ()
    no_graph: str = ""
    gpu: str = ""
    library: str = ""
    inputs: tuple[str, ...] = ()


def assemble_profile(compiled: Compiled, measured: MeasuredTimes) -> Profile:
    """Create a program's profile from its measurements; segments that did not run, because they belong to optimization
    profiles for other sizes, are left out."""
    ran = [s for s in compiled.partitioned.segments if s.profile is None or s.name in measured.segments]
    segments = tuple(_segment_time(compiled, segment, measured) for segment in ran)
    return Profile(
        segments=segments,
        nodes=tuple(_node_times(compiled, segments)),
        call=median(measured.calls or [0.0]),
        graph=median(measured.graphs) if measured.graphs else None,
        no_graph=measured.no_graph,
        runs=len(measured.calls),
        gpu=measured.gpu,
        library=measured.library,
        inputs=measured.inputs,
    )


def _segment_time(compiled: Compiled, segment: Segment, measured: MeasuredTimes) -> SegmentTime:
    whole = median(measured.segments.get(segment.name) or [0.0])
    if segment.kind == "torch":
        only = LayerTime(segment.name, whole, tuple(_names_of_operators(compiled, segment.nodes)), "segment")
        return SegmentTime(segment.name, "pytorch", whole, (only,), "events")
    rows = _median_rows(measured.layers.get(segment.name, ()))
    layers = tuple(_layer_times(compiled, segment, rows, measured.metadata.get(segment.name, {})))
    timings = time_rows(rows, measured.kernels.get(segment.name, ()))
    if timings is None:
        return SegmentTime(segment.name, "tensorrt", whole, layers)
    found = zip(layers, timings.rows, strict=True)
    layers = tuple(evolve(layer, milliseconds=taken, kernels=kernels) for layer, (kernels, taken) in found)
    left = max(whole - sum(layer.milliseconds for layer in layers), 0.0)
    between = LayerTime("between kernels", min(timings.between, left), by="between")
    return SegmentTime(segment.name, "tensorrt", whole, (*layers, between), "kernels")


def _median_rows(runs: Sequence[Rows]) -> Rows:
    """Return the median time of each profiler row of an engine, over the runs with the most common sequence of rows."""
    alike = zip(*most_common_runs(runs, lambda row: row[0]), strict=True)
    return [(rows[0][0], median(taken for _, taken in rows)) for rows in alike]


def _layer_times(
    compiled: Compiled, segment: Segment, rows: Rows, metadata: Mapping[str, Sequence[str]]
) -> Iterator[LayerTime]:
    """Yield a record for each profiler row of an engine: its time, and the graph nodes that the row computes.
    ``metadata``: by row name, the network layers that the engine inspector lists for the row."""
    names = [name for name, _ in rows]
    index = [s.name for s in compiled.partitioned.engine_segments].index(segment.name)
    engine, network = compiled.engines[index], compiled.networks[index]
    layer_names = compiled.layer_names(engine, network)
    planned: tuple[Kernel, ...] = ()
    with suppress(ValueError):
        planned = all_steps(engine.checked_plan())
    found = match_rows(names, planned, list(layer_names), metadata)
    for (name, taken), match in zip(rows, found, strict=True):
        computed = dict.fromkeys(node_name(layer_names.get(layer, layer)) for layer in match.layers)
        nodes = tuple(_names_of_operators(compiled, computed))
        yield LayerTime(name, taken, nodes, match.by if nodes or not match.layers else "")


def _names_of_operators(compiled: Compiled, names: Iterable[str]) -> Iterator[str]:
    """Yield those of the names that belong to operators in the program's graph, not to inputs, sizes or tuple items."""
    known = {node.name for node in compiled.program.graph.nodes if is_operator(node)}
    return (name for name in names if name in known)


def _node_times(compiled: Compiled, segments: Sequence[SegmentTime]) -> Iterator[NodeTime]:
    """Yield every node with its time; nodes that one profiler row computes share the row's time evenly."""
    times: defaultdict[str, float] = defaultdict(float)
    shared: defaultdict[str, int] = defaultdict(int)
    for layer in (layer for segment in segments for layer in segment.layers):
        for name in layer.nodes:
            times[name] += layer.milliseconds / len(layer.nodes)
            shared[name] = max(shared[name], len(layer.nodes) - 1)
    for node in (node for node in compiled.program.graph.nodes if node.name in times):
        name, where = node.name, node.meta.get("where") or source_line_in(node.meta)
        yield NodeTime(name, times[name], module_path(node), where, qualified_name(node.target), shared[name])
