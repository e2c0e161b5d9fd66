"""avoid_faults: ``Partitioned`` → ``Partitioned``. Mark the nodes whose networks must avoid bugs of TensorRT's kernels.

Before: segments. After: the same segments, with a mark for each node that a bug listed in `pipeline.quirks` affects.
"""

from __future__ import annotations

from attrs import evolve

from pipeline.build.profiles import symbols_in
from pipeline.compose.pipelines import stage
from pipeline.program import Partitioned, Segment
from pipeline.quirks.applied import find_marks


@stage
def avoid_faults(partitioned: Partitioned) -> Partitioned:
    """Mark the nodes in engines that known bugs of TensorRT affect; `pipeline.quirks.without` ignores some bugs."""
    program = partitioned.program
    nodes = {node.name: node for node in program.graph.nodes}

    def marked(segment: Segment) -> Segment:
        inside, outputs = [nodes[name] for name in segment.nodes], [port.name for port in segment.outputs]
        return evolve(segment, marks=find_marks(inside, symbols_in(program, segment), segment.constants, outputs))

    segments = (marked(each) if each.kind == "engine" else each for each in partitioned.segments)
    return evolve(partitioned, segments=tuple(segments))
