"""Describe as text the engines that would be built for a partitioned program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pipeline.records.wording import in_bytes
from pipeline.viewing.records import ProgramView, SegmentView


def planned(view: ProgramView) -> str:
    """Return a text on the engines that would be built for a program, with their operators, weights and sizes, and on
    operators that would run in PyTorch and why."""
    return "\n".join(_lines(view))


def _lines(view: ProgramView) -> Iterator[str]:
    engines = [s for s in view.segments if s.place == "tensorrt"]
    inside = len(view.operators) - len(view.fallbacks)
    plural = "s"[: len(engines) != 1]
    total = f"{inside} of {len(view.operators)} operators"
    yield f"{view.title}: {len(engines)} engine{plural} would be built, {total} in TensorRT"
    yield from (f"input  {line}" for line in view.inputs)
    yield from (f"output {line}" for line in view.outputs)
    yield from (f"size   {line}" for line in view.sizes)
    for segment in view.segments:
        yield from _segment(view, segment)
    for cut in view.cuts:
        yield f"cut {cut.source} -> {cut.target}: {in_bytes(cut.nbytes)}, at most {in_bytes(cut.max_nbytes)}"
    for node in view.fallbacks:
        yield f"in PyTorch: {node.target} at node {node.name}{f' ({node.where})' if node.where else ''}"
        yield from (f"  {line}" for line in (node.reason, f"hint: {node.hint}" if node.hint else "") if line)
    yield from map(str, view.unreached)
    yield f"settings: {', '.join(f'{name}={value}' for name, value in view.settings) or 'as by default'}"
    yield f"versions: {', '.join(f'{name} {number}' for name, number in view.versions)}"
    yield f"seconds: {', '.join(f'{stage.stage} {stage.seconds:.2f}' for stage in view.stages)}; nothing was built"


def _segment(view: ProgramView, segment: SegmentView) -> Iterator[str]:
    size = f"weights {in_bytes(segment.weights)}"
    operators = f"{segment.operators} operator{'s'[: segment.operators != 1]}"
    if segment.place == "tensorrt":
        yield f"engine {segment.name}: {operators}, {size}, which its plan holds at least once"
    else:
        yield f"PyTorch {segment.name}: {operators}, {size}"
    counts = Counter(node.target for node in view.operators if node.segment == segment.name)
    listed = ", ".join(f"{n} {target}" for target, n in sorted(counts.items(), key=lambda row: (-row[1], row[0])))
    yield f"  {listed}"
    yield from (f"  input  {port}" for port in segment.inputs)
    yield from (f"  output {port}" for port in segment.outputs)
