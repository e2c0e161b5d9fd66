"""How a partitioned program prints: the segments in order with what crosses between them, then every fallback."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pipeline.program import Partitioned, Segment

GETITEM = "operator.getitem"
"""The target of nodes that take an item of a result: they are no operators."""


def printed(partitioned: Partitioned) -> str:
    """The whole record as text."""
    segments = "\n".join(line for s in partitioned.segments for line in segment_lines(partitioned, s))
    return "\n".join(filter(None, [headline(partitioned), segments, *map(str, partitioned.fallbacks)]))


def headline(partitioned: Partitioned) -> str:
    """How many segments and engines there are, and how many operators run in engines."""
    verdicts = partitioned.verdicts
    inside = {n for s in partitioned.engine_segments for n in s.nodes if verdicts[n].target != GETITEM}
    total = len(inside) + len(partitioned.fallbacks)
    segments, engines = len(partitioned.segments), len(partitioned.engine_segments)
    return (
        f"{segments} segment{'s'[: segments != 1]}: {len(inside)} of {total} operators in "
        f"{engines} engine{'s'[: engines != 1]}"
    )


def operators(partitioned: Partitioned, segment: Segment) -> Counter[str]:
    """How many operators of each target a segment has."""
    targets = (partitioned.verdicts[name].target for name in segment.nodes)
    return Counter(target for target in targets if target != GETITEM)


def segment_lines(partitioned: Partitioned, segment: Segment) -> Iterator[str]:
    """A segment: its operators by target, inputs, outputs, and what crosses to later segments."""
    counts = operators(partitioned, segment)
    listed = ", ".join(f"{n} {target}" for target, n in sorted(counts.items(), key=lambda row: (-row[1], row[0])))
    total = counts.total()
    yield f"{segment.name}: {total} operator{'s'[: total != 1]}: {listed}"
    yield from (f"  input  {port}" for port in segment.inputs)
    yield from (f"  output {port}" for port in segment.outputs)
    yield from (f"  cut    {cut}" for cut in partitioned.cuts if cut.source == segment.name)
