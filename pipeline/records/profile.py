"""``Profile``: the time of a call by layer, segment and node."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, Literal

from attrs import frozen


@frozen
class LayerTime:
    """The time of a row of TensorRT's profiler (one or more layers), or of a PyTorch segment.

    name: TensorRT's name. milliseconds: the median of the runs. kernels: the row's GPU kernels by CUPTI's names. nodes:
    the graph nodes that the row computes, fully or partly; empty for a copy that TensorRT adds. by: how ``nodes`` was
    found: ``plan`` (by the plan's kernels), ``inspector`` (by layer metadata), ``name`` (by the row's name), ``order``
    (by neighbouring rows), ``segment`` (all its nodes). For a row without nodes, ``by`` is what it does: ``streams``
    (synchronize streams), ``sizes`` (compute sizes), ``between`` (wait between kernels), or "".
    """

    name: str
    milliseconds: float
    nodes: tuple[str, ...] = ()
    by: str = ""
    kernels: tuple[str, ...] = ()


@frozen
class SegmentTime:
    """The time of a segment and of its layers. ``milliseconds`` is measured without a profiler; all work is launched
    before the GPU begins it.

    timed: how the layers' times were measured. ``kernels``: CUPTI's kernel times, and a row for the idle time between
    kernels. CUPTI lengthens the idle time, so this row is at most the segment's time minus the kernels' times. The
    layers' sum is slightly above the segment's time, unless kernels run concurrently. ``profiler``: TensorRT's
    profiler, which adds microseconds to each row; used if CUPTI is busy or its kernels do not match. ``events``: CUDA.
    """

    segment: str
    place: Literal["tensorrt", "pytorch"]
    milliseconds: float
    layers: tuple[LayerTime, ...] = ()
    timed: Literal["kernels", "profiler", "events"] = "profiler"

    @property
    def layers_sum(self) -> float:
        """The sum of the milliseconds of all layers."""
        return sum(layer.milliseconds for layer in self.layers)


@frozen
class NodeTime:
    """The time of one graph node: the sum of its kernels' times, where a kernel that computes several nodes counts in
    equal shares. ``shared``: the largest number of other nodes that a kernel of this node computes."""

    node: str
    milliseconds: float
    module: str = ""
    where: str = ""
    target: str = ""
    shared: int = 0


@frozen
class Profile:
    """The time of a call by segment, layer and node, as medians of ``runs`` calls in milliseconds on the GPU.

    segments: in execution order, with their layers. nodes: every node with its time. call: the call without CUDA
    graphs. graph: the call with CUDA graphs; None if the call cannot be captured, for the reason in ``no_graph``. gpu:
    the GPU's name. library: TensorRT and its version. inputs: a description of the call's inputs.
    """

    segments: tuple[SegmentTime, ...]
    nodes: tuple[NodeTime, ...] = ()
    call: float = 0.0
    graph: float | None = None
    no_graph: str = ""
    runs: int = 0
    gpu: str = ""
    library: str = ""
    inputs: tuple[str, ...] = ()

    _write_trace: ClassVar[Callable[[Profile, str | os.PathLike[str]], None]]
    """The function that writes a trace file; `pipeline.api` sets it."""

    @property
    def layers_sum(self) -> float:
        """The sum of the milliseconds of all layers and PyTorch segments."""
        return sum(segment.layers_sum for segment in self.segments)

    @property
    def unassigned(self) -> tuple[LayerTime, ...]:
        """The rows of TensorRT's profiler that no graph node accounts for."""
        return tuple(layer for segment in self.segments for layer in segment.layers if not layer.nodes)

    def by_module(self, depth: int = 2) -> dict[str, float]:
        """Return the milliseconds of each module down to this depth (``encoder.layers`` has depth 2), slowest first."""
        times: Counter[str] = Counter()
        for node in self.nodes:
            times[".".join(node.module.split(".")[:depth])] += node.milliseconds  # type: ignore[assignment]
        return dict(times.most_common())

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write a trace for https://ui.perfetto.dev and chrome://tracing: the call, segments, layers and nodes, with
        modules and source lines. Raise an `OSError` if the file cannot be written."""
        self._write_trace(path)

    def __str__(self) -> str:
        return "\n".join(_report_lines(self))


SHOWN = 20
"""The number of layers in a printed profile; ``Profile`` itself has all layers."""


def _report_lines(profile: Profile) -> Iterator[str]:
    graph = f"{profile.graph:.3f} ms" if profile.graph is not None else f"not captured ({profile.no_graph})"
    yield f"{profile.gpu}, {profile.library}, median of {profile.runs} runs; inputs {', '.join(profile.inputs)}"
    yield f"whole call: {profile.call:.3f} ms; with CUDA graphs: {graph}"
    shares = f"{_percent(profile.layers_sum, profile.call)} of the call"
    if profile.graph is not None:
        shares += f", {_percent(profile.layers_sum, profile.graph)} of that with CUDA graphs"
    yield f"sum of layers: {profile.layers_sum:.3f} ms ({shares})"
    for segment in profile.segments:
        share = _percent(segment.layers_sum, segment.milliseconds)
        by = ", each with what TensorRT's profiler adds" if segment.timed == "profiler" else ""
        times = f"{segment.milliseconds:.3f} ms, its layers {segment.layers_sum:.3f} ms ({share}{by})"
        yield f"{segment.segment} ({segment.place}): {times}"
    yield from _table_lines(profile)
    if profile.unassigned:
        lost = sum(layer.milliseconds for layer in profile.unassigned)
        yield f"TensorRT's own, no node's: {lost:.3f} ms: {', '.join(_lines_without_node(profile.unassigned))}"


OWN = {"between": "between kernels", "streams": "streams that wait for each other", "sizes": "sizes of dynamic shapes"}
"""Descriptions, for the printed profile, of rows that compute no graph node."""


def _lines_without_node(layers: tuple[LayerTime, ...]) -> Iterator[str]:
    """Yield texts about rows without a graph node: a sum for each kind (``0.012 between kernels``), then at most 8
    names of other rows."""
    for by, what in OWN.items():
        if found := [layer.milliseconds for layer in layers if layer.by == by]:
            yield f"{sum(found):.3f} {what}"
    yield from [layer.name for layer in layers if layer.by not in OWN][:8]


def _table_lines(profile: Profile) -> Iterator[str]:
    where = {node.node: node.where.partition(",")[0] for node in profile.nodes}
    rows = sorted((row for segment in profile.segments for row in segment.layers), key=lambda row: -row.milliseconds)
    yield f"{'ms':>9}  {'%':>5}  layer"
    for layer in rows[:SHOWN]:
        share = _percent(layer.milliseconds, profile.layers_sum).removesuffix(" %")
        yield f"{layer.milliseconds:9.4f}  {share:>5}  {layer.name}"
        if layer.nodes:
            places = _shorten_list(dict.fromkeys(where[n] for n in layer.nodes if where.get(n)), 3)
            yield f"{'':16}  {_shorten_list(layer.nodes)}{places and f' ({places})'}"
    if len(rows) > SHOWN:
        rest = sum(layer.milliseconds for layer in rows[SHOWN:])
        share = _percent(rest, profile.layers_sum).removesuffix(" %")
        yield f"{rest:9.4f}  {share:>5}  {len(rows) - SHOWN} more layers"


def _shorten_list(names: Iterable[str], count: int = 6) -> str:
    """Join the first ``count`` names by commas, and add how many are left out: ``a, b and 3 more``."""
    found = list(names)
    return ", ".join(found[:count]) + (f" and {len(found) - count} more" if len(found) > count else "")


def _percent(milliseconds: float, total: float) -> str:
    return f"{100 * milliseconds / total:.1f} %" if total else "-"
