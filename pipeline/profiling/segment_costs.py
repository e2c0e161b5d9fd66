"""Compare programs by the times of their segments on a GPU, in turns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Final

import torch
from attrs import astuple, frozen

from pipeline.aten.types import Argument
from pipeline.compiled import Compiled
from pipeline.profiling.measure import Ahead, Call, elapsed, instrumentable, instrumented, mark
from pipeline.runtime import graph_copies
from pipeline.runtime.capture import captured, make_room
from pipeline.runtime.module import ProgramModule

log = logging.getLogger(__name__)

FEW, LEAST = 9, 3
ENOUGH: Final = 0.3
"""The seconds after which a call is not repeated, but for the least number of times."""


@frozen
class SegmentCost:
    """The milliseconds of a segment: on the GPU, and of the host to launch it."""

    gpu: float
    host: float

    @property
    def most(self) -> float:
        """Return the time of a call without a CUDA graph."""
        return max(self.gpu, self.host)


def segment_costs(
    programs: Sequence[Compiled],
    calls: Sequence[Call],
    turn: Callable[[], AbstractContextManager[object]] = nullcontext,
    runs: int = FEW,
) -> list[Mapping[str, SegmentCost]]:
    """Return the least cost of each program's segments that run in a call, one after the other in turns: other
    processes on the GPU only make calls longer. Of several calls the geometric mean is returned.

    With ``cuda_graphs`` they are those in a program's CUDA graph, where the host launches nothing.

    turn: makes the context within which they are measured, after engines are loaded and kernels compiled.
    """
    shared = dict[str, torch.Tensor]()
    with torch.no_grad():
        modules = [instrumentable(each, shared) for each in programs]
        times = [max(call.warm(module, LEAST) for module in modules) for call in calls]
        counts = [min(runs, max(LEAST, int(ENOUGH / longest))) for longest in times]
        for call, count in zip(calls, counts, strict=True):
            for module in modules:
                call.warm(module, count)
        with turn():
            replays = list(_replayed(programs, modules, calls, counts))
            found = [instrumented(module) for module in modules]
            costs = [_called(modules, found, c, count) for c, count in zip(calls, counts, strict=True)]
    rows = [[_shared(*row) for row in zip(*each, strict=True)] for each in zip(costs, replays, strict=True)]
    return [{name: _mean([costs[name] for costs in of]) for name in of[0]} for of in zip(*rows, strict=True)]


def _called(
    modules: Sequence[ProgramModule], found: Sequence[Mapping[str, Ahead]], call: Call, runs: int
) -> list[dict[str, SegmentCost]]:
    """Return the least cost of segments in calls without a graph."""
    for ahead in (ahead for aheads in found for ahead in aheads.values()):
        ahead.host, ahead.marks = None, []
    for _ in range(runs + 1):
        for module in modules:
            call(module)
            torch.cuda.synchronize()
    return [
        {name: SegmentCost(min(elapsed(a.marks)), 1e3 * (a.host or 0.0)) for name, a in aheads.items() if a.marks}
        for aheads in found
    ]


def _mean(costs: Sequence[SegmentCost]) -> SegmentCost:
    return SegmentCost(*(prod(column) ** (1 / len(costs)) for column in zip(*map(astuple, costs), strict=True)))


def _replayed(
    programs: Sequence[Compiled], modules: Sequence[ProgramModule], calls: Sequence[Call], counts: Sequence[int]
) -> Iterator[list[list[float]]]:
    """Yield for each call the milliseconds of its replays by each program, none without ``cuda_graphs``.

    Their graphs share one pool of memory.
    """
    pool: Argument = None
    every: list[torch.cuda.CUDAGraph | None] = []
    for call, count in zip(calls, counts, strict=True):
        for module, program in zip(modules, programs, strict=True):
            recorded = program.settings.cuda_graphs
            if recorded and not any(every):  # torch keeps no pool without a graph
                pool = torch.cuda.graph_pool_handle()
            every.append(_graph_of(module, call, pool) if recorded else None)
        yield _replay_times(every[-len(programs) :], count)


def _shared(costs: Mapping[str, SegmentCost], times: Sequence[float]) -> Mapping[str, SegmentCost]:
    """Return the costs of segments in a CUDA graph: its time, divided as the time of a call without one; the same costs
    if there is no graph."""
    total = sum(cost.gpu for cost in costs.values())
    if not times or not total:
        return costs
    return {name: SegmentCost(min(times) * cost.gpu / total, 0.0) for name, cost in costs.items()}


def _graph_of(module: ProgramModule, call: Call, pool: Argument) -> torch.cuda.CUDAGraph | None:
    """Capture a call in a CUDA graph; None if that fails."""
    graph, device = torch.cuda.CUDAGraph(), torch.device("cuda", torch.cuda.current_device())
    try:
        call(module)  # engines that ran with other sizes allocate memory, which a capture cannot
        make_room()
        with captured(graph, pool, graph_copies.capture_stream(device), in_torch=True):
            call(module)
    except Exception as error:
        log.info("a call that is measured cannot be captured: %s", error)
        return None
    return graph


def _replay_times(graphs: Sequence[torch.cuda.CUDAGraph | None], runs: int) -> list[list[float]]:
    """Return the milliseconds of replays of each graph, in turns."""
    marks: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[] for _ in graphs]
    for run in range(2 * runs):
        for graph, own in zip(graphs, marks, strict=True):
            if graph is not None:
                start = mark()
                graph.replay()
                own += [(start, mark())] * (run >= runs)
    return [elapsed(own) for own in marks]
