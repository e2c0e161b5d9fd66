"""``CudaWorker``: run a program on a GPU with its own execution contexts, one arena, and optional CUDA graphs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import torch

from pipeline.aten.types import Leaf
from pipeline.runtime.call_plan import ON_CPU, CallPlan, Layout, SegmentRunner, Step, Turn
from pipeline.runtime.cuda_graphs import CapturedCall, CudaGraphs
from pipeline.runtime.engine_buffers import Arena
from pipeline.runtime.engine_context import Contexts
from pipeline.runtime.engine_load import LoadedEngine
from pipeline.runtime.engine_profiles import ProfiledSession
from pipeline.runtime.engine_session import Session
from pipeline.runtime.engine_stream import Lane
from pipeline.runtime.worker import SegmentExecutor
from pipeline.settings import CompilationSettings


class EngineStep:
    """An engine as a step, which fills the slots ``gives``. ``own``: outputs may stay in the session's memory."""

    def __init__(self, session: Session | ProfiledSession, gives: Sequence[int], own: bool) -> None:
        self.session, self.gives, self.own = session, gives, own

    def __call__(self, inputs: list[Leaf], turn: Turn) -> Sequence[object]:
        if not turn.captured:
            return self.session(inputs, turn.stream, own=self.own, like=turn.plan)
        into = {i: turn.into[slot] for i, slot in enumerate(self.gives) if slot in turn.into}
        return self.session(inputs, turn.stream, own=self.own, loose=True, into=into)


class CudaWorker:
    """Run a program on the current stream of a GPU, one call at a time."""

    def __init__(
        self,
        layout: Layout,
        parts: Sequence[SegmentRunner | LoadedEngine],
        device: torch.device,
        settings: CompilationSettings,
        graphs: CudaGraphs | None,
    ) -> None:
        self.lane, self.graphs, self._turn = Lane(device), graphs, ON_CPU
        self._static = layout.static
        arena, contexts = Arena(device), defaultdict[object, Contexts](Contexts)
        for part in parts:  # before any engine runs: growing the arena would free memory in use
            if isinstance(part, LoadedEngine):
                arena.reserve(part.device_memory)

        def runner(step: Step, part: SegmentRunner | LoadedEngine) -> SegmentRunner:
            if not isinstance(part, LoadedEngine):
                return part
            launched = settings.engine_graphs and graphs is None
            inputs, constants = step.segment.inputs, layout.program.constants
            held = frozenset(i for i, port in enumerate(inputs) if port.name in layout.program.buffers)
            fixed = frozenset(i for i, port in enumerate(inputs) if port.name in constants)
            alike = contexts[tuple(port.shape for port in inputs)]

            def make(stream: torch.cuda.Stream, place: int = 0) -> Session:
                known = partial(Session, part, stream, arena, contexts=alike, profile=place)
                return known(graph=launched, held=held, fixed=fixed)

            several = len(part.network.profiles) > 1
            session = ProfiledSession(part.network, make) if several else self.lane.run(make)
            return EngineStep(session, step.gives, settings.reuse_outputs or _inner(layout, step))

        with torch.cuda.device(device):
            runners = [runner(step, part) for step, part in zip(layout.steps, parts, strict=True)]
        self.executor = SegmentExecutor(layout, runners, device)

    def __call__(self, plan: CallPlan, leaves: Sequence[object]) -> list[Leaf]:
        """Return the program's outputs for these inputs, in the order of the current stream."""
        if self.lane.elsewhere():
            with torch.cuda.device(self.lane.device):
                return self(plan, leaves)
        if self.graphs is not None:
            graph = self.graphs.of(plan, leaves, self)
            if graph is not None:
                return graph(leaves, self.lane.handle())
        return self._run(plan, leaves)

    def replayed(self, graph: CapturedCall, plan: CallPlan, leaves: Sequence[object]) -> list[Leaf] | None:
        """Return a graph's outputs for inputs that fit it; None if the graph is another worker's, or another GPU is
        current."""
        if self.lane.elsewhere() or self.graphs is None or self.graphs.kept.get(plan) is not graph:
            return None
        return graph(leaves, self.lane.handle())

    def _run(self, plan: CallPlan, leaves: Sequence[object]) -> list[Leaf]:
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self._run(plan, leaves)
        return self.lane.run(self._on, plan, leaves)

    def _on(self, stream: torch.cuda.Stream, plan: CallPlan, leaves: Sequence[object]) -> list[Leaf]:
        shapes = plan if self._static else None
        if self._turn.stream is not stream or self._turn.plan is not shapes:
            self._turn = Turn(stream, shapes)  # reused while calls have the same shapes
        return self.executor(plan, leaves, self._turn)


def _inner(layout: Layout, step: Step) -> bool:
    """Return whether only engines read a step's outputs."""
    others = {i for s in layout.steps if s.segment.kind == "torch" for i in s.takes}
    returned = {r.slot for r in layout.returns} | {w.slot for w in layout.writes}
    return not (set(step.gives) & (others | returned))
