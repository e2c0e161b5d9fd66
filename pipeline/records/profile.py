"""``Profile``: where the milliseconds of a call go, by layer, segment and node."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, Literal

from attrs import frozen

Place = Literal["tensorrt", "pytorch"]


@frozen
class LayerTime:
    """One row of TensorRT's profiler, or a segment of PyTorch as a whole.

    name: TensorRT's own. milliseconds: the median of the runs. kernels: the GPU's kernels that ran for it, as CUPTI
    names them. nodes: those that it computes, wholly or in part; empty if it belongs to none (a copy that TensorRT
    adds). by: how its nodes were found: ``plan`` (the plan's kernels), ``inspector`` (the layers' metadata), ``order``
    (the layers between its neighbours'), ``name`` (the layers named in it), ``segment``; or what it does instead of
    computing: ``streams`` (they wait for each other), ``sizes`` (of dynamic shapes), ``between`` (no kernel runs, from
    one to the next); else empty.
    """

    name: str
    milliseconds: float
    nodes: tuple[str, ...] = ()
    by: str = ""
    kernels: tuple[str, ...] = ()


@frozen
class SegmentTime:
    """The times of a segment: ``milliseconds`` of the whole, measured without a profiler and with all of it launched
    before it begins, and its layers.

    timed: the source of the layers' times. ``kernels``: each kernel's own time from CUPTI, and a row for the time
    between them, also from CUPTI. CUPTI lengthens the latter, so it is limited to the rest of the segment's time.
    Together they are little more than the segment's time, unless kernels run side by side. ``profiler``: TensorRT's
    own, which adds some microseconds to each row; used if CUPTI is busy, or its kernels do not match the rows.
    ``events``: PyTorch's.
    """

    segment: str
    place: Place
    milliseconds: float
    layers: tuple[LayerTime, ...] = ()
    timed: Literal["kernels", "profiler", "events"] = "profiler"

    @property
    def layers_sum(self) -> float:
        """Milliseconds of all layers together."""
        return sum(layer.milliseconds for layer in self.layers)


@frozen
class NodeTime:
    """A node's part of the time: that of kernels that compute it alone, and an even share of kernels that compute
    several (``shared``: with how many others at most)."""

    node: str
    milliseconds: float
    module: str = ""
    where: str = ""
    target: str = ""
    shared: int = 0


@frozen
class Profile:
    """Where the time of a call goes. All times are medians of ``runs`` calls, in milliseconds on the GPU.

    segments: in the order in which they run, each with its layers. nodes: every node with its share.
    call: the whole call without CUDA graphs; graph: the same with them, None if it cannot be captured (``no_graph``
    says why). gpu: the GPU's name. library: TensorRT and its version. inputs: the inputs of the call.
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
    """Defined by `pipeline.api`."""

    @property
    def layers_sum(self) -> float:
        """Milliseconds of all layers and PyTorch segments together."""
        return sum(segment.layers_sum for segment in self.segments)

    @property
    def unassigned(self) -> tuple[LayerTime, ...]:
        """TensorRT's rows that belong to no node of the program."""
        return tuple(layer for segment in self.segments for layer in segment.layers if not layer.nodes)

    def by_module(self, depth: int = 2) -> dict[str, float]:
        """Milliseconds of each module down to a depth, the most expensive first (``encoder.layers`` is 2 deep)."""
        times: Counter[str] = Counter()
        for node in self.nodes:
            times[".".join(node.module.split(".")[:depth])] += node.milliseconds  # type: ignore[assignment]
        return dict(times.most_common())

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write it as a trace that https://ui.perfetto.dev and chrome://tracing read: the call, its segments, layers
        and nodes, with modules and source lines.

        Raises:
            OSError: the file cannot be written.
        """
        self._write_trace(path)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


SHOWN = 20
"""How many layers a printed profile has; the record has all."""


def _lines(profile: Profile) -> Iterator[str]:
    graph = f"{profile.graph:.3f} ms" if profile.graph is not None else f"not captured ({profile.no_graph})"
    yield f"{profile.gpu}, {profile.library}, median of {profile.runs} runs; inputs {', '.join(profile.inputs)}"
    yield f"whole call: {profile.call:.3f} ms; with CUDA graphs: {graph}"
    yield f"sum of layers: {profile.layers_sum:.3f} ms ({', '.join(_shares(profile))})"
    for segment in profile.segments:
        share = _percent(segment.layers_sum, segment.milliseconds)
        by = ", each with what TensorRT's profiler adds" if segment.timed == "profiler" else ""
        times = f"{segment.milliseconds:.3f} ms, its layers {segment.layers_sum:.3f} ms ({share}{by})"
        yield f"{segment.segment} ({segment.place}): {times}"
    yield from _table(profile)
    if profile.unassigned:
        lost = sum(layer.milliseconds for layer in profile.unassigned)
        yield f"TensorRT's own, no node's: {lost:.3f} ms: {', '.join(_own(profile.unassigned))}"


def _shares(profile: Profile) -> Iterator[str]:
    """What the layers are of the whole call, without CUDA graphs and with them."""
    yield f"{_percent(profile.layers_sum, profile.call)} of the call"
    if profile.graph is not None:
        yield f"{_percent(profile.layers_sum, profile.graph)} of that with CUDA graphs"


OWN = {
    "between": "between kernels",
    "streams": "streams that wait for each other",
    "sizes": "sizes of dynamic shapes",
}
"""What rows do that compute nothing."""


def _own(layers: tuple[LayerTime, ...]) -> Iterator[str]:
    """What TensorRT does by itself: the sums of what computes nothing, and the names of what does, of 8 at most."""
    for by, what in OWN.items():
        if found := [layer.milliseconds for layer in layers if layer.by == by]:
            yield f"{sum(found):.3f} {what}"
    yield from [layer.name for layer in layers if layer.by not in OWN][:8]


def _table(profile: Profile) -> Iterator[str]:
    where = {node.node: node.where.partition(",")[0] for node in profile.nodes}
    rows = [(layer, segment) for segment in profile.segments for layer in segment.layers]
    rows.sort(key=lambda row: -row[0].milliseconds)
    yield f"{'ms':>9}  {'%':>5}  layer"
    for layer, _ in rows[:SHOWN]:
        share = _percent(layer.milliseconds, profile.layers_sum).removesuffix(" %")
        yield f"{layer.milliseconds:9.4f}  {share:>5}  {layer.name}"
        if layer.nodes:
            yield f"{'':16}  {_some(layer.nodes)}{_places(where[n] for n in layer.nodes if where.get(n))}"
    if len(rows) > SHOWN:
        rest = sum(layer.milliseconds for layer, _ in rows[SHOWN:])
        share = _percent(rest, profile.layers_sum).removesuffix(" %")
        yield f"{rest:9.4f}  {share:>5}  {len(rows) - SHOWN} more layers"


def _some(names: Iterable[str], count: int = 6) -> str:
    found = list(names)
    return ", ".join(found[:count]) + (f" and {len(found) - count} more" if len(found) > count else "")


def _places(lines: Iterable[str]) -> str:
    found = list(dict.fromkeys(lines))
    return f" ({_some(found, 3)})" if found else ""


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"
