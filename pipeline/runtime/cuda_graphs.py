"""CUDA graphs of a whole program, PyTorch segments included: one for each shape, a bounded number of them.

A shape's first call runs as ever, its second is captured, later ones are replayed: the inputs are copied to the
graph's own memory and the outputs are copied out, so that nothing a caller holds is ever overwritten.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve

from pipeline.runtime.plan import CallPlan, Layout

if TYPE_CHECKING:
    from pipeline.runtime.cuda_worker import CudaWorker

log = logging.getLogger(__name__)

_capturing = threading.Lock()


class CapturedCall:
    """A call as a CUDA graph.

    ``feeds``: (input number, the graph's copy of it). ``results``: the outputs in the graph's memory, each with the
    number of the input that it is, if it is one. ``written``: (input number, value to write to it).
    """

    def __init__(self, worker: CudaWorker, plan: CallPlan, leaves: Sequence[Any], pool: Any, reuse: bool) -> None:
        executor = worker.executor
        layout, slots = executor.layout, plan.template.copy()
        self.plan, self.reuse = plan, reuse
        self.feeds: list[tuple[int, torch.Tensor]] = []
        for given, slot, _ in plan.moves:
            slots[slot] = executor.arrive(leaves[given]).clone(memory_format=torch.contiguous_format)
            self.feeds.append((given, slots[slot]))
        stays = evolve(plan, home=None)

        def body() -> tuple[list[Any], list[Any]]:
            values = slots.copy()
            symbols = executor.run(values, plan.symbols)
            return values, executor.results(values, leaves, stays, symbols)

        self.graph = torch.cuda.CUDAGraph()
        values, results = self._captured(worker, body, layout, pool)
        self.results = [(r.given, value) for r, value in zip(layout.returns, results, strict=True)]
        self.written = [(w.given, values[w.slot]) for w in layout.writes if w.given is not None]

    def _captured(self, worker: CudaWorker, body: Any, layout: Layout, pool: Any) -> tuple[list[Any], list[Any]]:
        turn, stream = worker.turn, torch.cuda.Stream(worker.lane.device)
        caller = worker.lane.here()
        stream.wait_stream(caller)
        turn.captured = True
        try:
            with torch.cuda.stream(stream):
                turn.stream = stream
                body()  # what is compiled or allocated at a first run is so now
                stream.synchronize()
            with torch.cuda.graph(self.graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                values, results = body()
                for write in layout.writes:
                    if write.buffer is not None:
                        values[write.buffer].copy_(values[write.slot])
        finally:
            turn.captured = False
            caller.wait_stream(stream)
        return values, results

    def __call__(self, leaves: Sequence[Any]) -> list[Any]:
        """The outputs for these inputs, on the current stream."""
        for given, held in self.feeds:
            held.copy_(leaves[given])
        self.graph.replay()
        outputs = [self._given(value) if given is None else leaves[given] for given, value in self.results]
        for given, value in self.written:
            leaves[given].copy_(value)
        return outputs

    def _given(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if self.plan.home is not None:
            return value.to(self.plan.home)
        return value if self.reuse else value.clone()


class CudaGraphs:
    """The graphs of one worker by plan, the least recently used forgotten first.

    ``refused`` says for each plan that cannot be captured why; such calls run as without graphs.
    """

    def __init__(self, limit: int, reuse: bool) -> None:
        self.limit, self.reuse = limit, reuse
        self.kept: dict[CallPlan, CapturedCall] = {}
        self.refused: dict[CallPlan, str] = {}
        self._seen: dict[CallPlan, None] = {}
        self._pool: Any = None

    def get(self, plan: CallPlan, leaves: Sequence[Any], worker: CudaWorker) -> CapturedCall | None:
        """The graph of a plan; None at its first call, and where it cannot be captured."""
        graph = self.kept.get(plan)
        if graph is not None:
            if len(self.kept) > 1:
                self.kept[plan] = self.kept.pop(plan)
            return graph
        if plan in self.refused or torch.cuda.is_current_stream_capturing():
            return None
        if plan not in self._seen:
            _bounded(self._seen, 8 * self.limit)[plan] = None
            return None
        return self._capture(plan, leaves, worker)

    def _capture(self, plan: CallPlan, leaves: Sequence[Any], worker: CudaWorker) -> CapturedCall | None:
        reason = None if worker.executor.layout.static else "sizes inside it depend on its inputs' values"
        if reason is None:
            while len(self.kept) >= self.limit:
                self.kept.pop(next(iter(self.kept)))
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            try:
                with _capturing:
                    self.kept[plan] = CapturedCall(worker, plan, leaves, self._pool, self.reuse)
                return self.kept[plan]
            except Exception as error:
                reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        _bounded(self.refused, 8 * self.limit)[plan] = reason
        log.warning("a call cannot be captured in a CUDA graph and runs without: %s", reason)
        return None


def _bounded(store: dict[Any, Any], limit: int) -> dict[Any, Any]:
    while len(store) >= limit:
        store.pop(next(iter(store)))
    return store
