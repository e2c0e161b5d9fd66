"""Write a profile as a trace for https://ui.perfetto.dev or chrome://tracing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from pipeline.records.profile import Profile, SegmentTime
from pipeline.runtime.atomic import replace_file

TRACKS = {"call": 1, "segments": 2, "layers": 3, "nodes": 4}
"""The horizontal tracks of the trace, with their numbers, from top to bottom."""
Event: TypeAlias = dict[str, object]


def write_trace(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write a profile as a JSON trace for Perfetto or chrome://tracing. Layers follow one another, each as long as its
    median time; times are in microseconds.

    Raises:
        OSError: the file cannot be written.
    """
    about = {"gpu": profile.gpu, "library": profile.library, "runs": str(profile.runs)}
    about["inputs"] = ", ".join(profile.inputs)
    text = json.dumps({"traceEvents": list(trace_events(profile)), "displayTimeUnit": "ms", "otherData": about})
    with replace_file(Path(path)) as file:
        file.write(text.encode())


def trace_events(profile: Profile) -> Iterator[Event]:
    """Return the events of a profile's trace, in the format of chrome://tracing."""
    yield {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": profile.gpu or "GPU"}}
    for name, track in TRACKS.items():
        yield {"ph": "M", "pid": 1, "tid": track, "name": "thread_name", "args": {"name": name}}
    start = 0.0
    for segment in profile.segments:
        yield from _segment_events(profile, segment, start)
        start += _segment_milliseconds(segment)
    yield _complete_event("call", "call", 0.0, start, {"milliseconds": profile.call, "with CUDA graphs": profile.graph})


def _segment_milliseconds(segment: SegmentTime) -> float:
    """Return a segment's length in the trace: its measured time, or the sum of its layers' times if that is longer."""
    return max(segment.milliseconds, segment.layers_sum)


def _segment_events(profile: Profile, segment: SegmentTime, start: float) -> Iterator[Event]:
    """Yield the trace's events of a segment, its layers and nodes; the segment begins at ``start`` (milliseconds)."""
    nodes_by_name = {node.node: node for node in profile.nodes}
    args = {"place": segment.place, "layers": len(segment.layers)}
    yield _complete_event("segments", segment.segment, start, _segment_milliseconds(segment), args)
    for layer in segment.layers:
        nodes = [nodes_by_name[name] for name in layer.nodes if name in nodes_by_name]
        details = {"nodes": list(layer.nodes), "modules": sorted({n.module for n in nodes}), "by": layer.by}
        details["where"] = sorted({n.where for n in nodes if n.where})
        yield _complete_event("layers", layer.name, start, layer.milliseconds, details)
        share = layer.milliseconds / max(1, len(nodes))
        for i, node in enumerate(nodes):
            details = {"target": node.target, "module": node.module, "where": node.where}
            yield _complete_event("nodes", node.node, start + i * share, share, details)
        start += layer.milliseconds


def _complete_event(track: str, name: str, start: float, milliseconds: float, args: Mapping[str, object]) -> Event:
    """Return a trace event with a beginning (``start``, in milliseconds) and a length, on one of the ``TRACKS``."""
    times = {"ts": round(start * 1000, 3), "dur": round(milliseconds * 1000, 3)}
    return {"ph": "X", "pid": 1, "tid": TRACKS[track], "cat": track, "name": name, **times, "args": args}
