"""Compare programs by the GPU times of their segments; the programs run alternately."""

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
from pipeline.profiling.measure import (
    Call,
    SegmentTimer,
    attach_timers,
    create_instrumentable,
    elapsed_milliseconds,
    record_event,
)
from pipeline.runtime import graph_copies
from pipeline.runtime.capture import capture, free_unused_memory
from pipeline.runtime.module import ProgramModule

log = logging.getLogger(__name__)

MOST, LEAST = 9, 3
"""The maximum and the minimum number of runs of each call."""
ENOUGH: Final = 0.3
"""The seconds of measurement after which a call is not repeated, if it has run the minimum number of times."""


@frozen
class SegmentCost:
    """The time of a segment in milliseconds: on the GPU, and on the host to launch the segment."""

    gpu: float
    host: float

    @property
    def max_time(self) -> float:
        """Return the time of the segment in a call without a CUDA graph: the longer of GPU and host time."""
        return max(self.gpu, self.host)


def segment_costs(
    programs: Sequence[Compiled],
    calls: Sequence[Call],
    measuring_context: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> list[Mapping[str, SegmentCost]]:
    """Measure the segments of several programs; return, for each program, the cost of each segment by name. Programs
    run alternately, and the shortest run of a call counts, since other processes on the GPU only add time; for several
    calls, the geometric mean of these. With the setting ``cuda_graphs``, a cost is the segment's share of the program's
    CUDA graph, in which the host launches nothing.

    measuring_context: returns a context manager, in which the calls are timed. It is entered after engines are loaded
        and kernels compiled. Long calls run less often.
    """
    shared = dict[str, torch.Tensor]()
    with torch.no_grad():
        modules = [create_instrumentable(program, shared) for program in programs]
        times = [max(call.warm_up(module, LEAST) for module in modules) for call in calls]
        counts = [min(MOST, max(LEAST, int(ENOUGH / longest))) for longest in times]
        for call, count in zip(calls, counts, strict=True):
            for module in modules:
                call.warm_up(module, count)
        with measuring_context():
            replays = list(_measure_replays(programs, modules, calls, counts))
            timers = [attach_timers(module) for module in modules]
            costs = [_costs_in_calls(modules, timers, c, count) for c, count in zip(calls, counts, strict=True)]
    rows = [
        [_divide_graph_time(*row) for row in zip(*program, strict=True)] for program in zip(costs, replays, strict=True)
    ]
    return [{name: _geometric_mean([costs[name] for costs in of]) for name in of[0]} for of in zip(*rows, strict=True)]


def _costs_in_calls(
    modules: Sequence[ProgramModule], timers: Sequence[Mapping[str, SegmentTimer]], call: Call, runs: int
) -> list[dict[str, SegmentCost]]:
    """Return, for each module, the lowest times of its segments by name, in ``runs`` calls without a CUDA graph.
    ``timers``: the timers of each module by segment (`attach_timers`)."""
    for timer in (timer for module_timers in timers for timer in module_timers.values()):
        timer.host, timer.marks = None, []
    for _ in range(runs + 1):
        for module in modules:
            call(module)
            torch.cuda.synchronize()
    return [
        {
            name: SegmentCost(min(elapsed_milliseconds(a.marks)), 1e3 * (a.host or 0.0))
            for name, a in module_timers.items()
            if a.marks
        }
        for module_timers in timers
    ]


def _geometric_mean(costs: Sequence[SegmentCost]) -> SegmentCost:
    return SegmentCost(*(prod(column) ** (1 / len(costs)) for column in zip(*map(astuple, costs), strict=True)))


def _measure_replays(
    programs: Sequence[Compiled], modules: Sequence[ProgramModule], calls: Sequence[Call], counts: Sequence[int]
) -> Iterator[list[list[float]]]:
    """Capture each call of each program in a CUDA graph, and replay it. Yield, for each call, a list with an item for
    each program: the milliseconds of its replays, or ``[]`` if its setting ``cuda_graphs`` is False or the capture
    fails. ``counts``: the number of replays of each call. All graphs share one memory pool."""
    pool: Argument = None
    graphs: list[torch.cuda.CUDAGraph | None] = []
    for call, count in zip(calls, counts, strict=True):
        for module, program in zip(modules, programs, strict=True):
            in_graph = program.settings.cuda_graphs
            if in_graph and not any(graphs):  # torch keeps no pool without a graph
                pool = torch.cuda.graph_pool_handle()
            graphs.append(_capture_graph(module, call, pool) if in_graph else None)
        yield _replay_times(graphs[-len(programs) :], count)


def _divide_graph_time(costs: Mapping[str, SegmentCost], times: Sequence[float]) -> Mapping[str, SegmentCost]:
    """Return the segments' times within a CUDA graph: the graph's replay time, divided in proportion to the times in a
    call without a graph. If there is no graph, return the times unchanged."""
    total = sum(cost.gpu for cost in costs.values())
    if not times or not total:
        return costs
    return {name: SegmentCost(min(times) * cost.gpu / total, 0.0) for name, cost in costs.items()}


def _capture_graph(module: ProgramModule, call: Call, pool: Argument) -> torch.cuda.CUDAGraph | None:
    """Capture a call in a CUDA graph; return None if the capture fails."""
    graph, device = torch.cuda.CUDAGraph(), torch.device("cuda", torch.cuda.current_device())
    try:
        call(module)  # engines that ran with other sizes allocate memory, which a capture cannot
        free_unused_memory()
        with capture(graph, pool, graph_copies.capture_stream(device), runs_torch=True):
            call(module)
    except Exception as error:
        log.info("a call that is measured cannot be captured: %s", error)
        return None
    return graph


def _replay_times(graphs: Sequence[torch.cuda.CUDAGraph | None], runs: int) -> list[list[float]]:
    """Replay several CUDA graphs alternately; return the milliseconds of the replays of each graph."""
    marks: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[] for _ in graphs]
    for run in range(2 * runs):
        for graph, graph_marks in zip(graphs, marks, strict=True):
            if graph is not None:
                start = record_event()
                graph.replay()
                graph_marks += [(start, record_event())] * (run >= runs)
    return [elapsed_milliseconds(graph_marks) for graph_marks in marks]
