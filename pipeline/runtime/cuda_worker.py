"""Run a program on a GPU (``CudaWorker``): stream order, execution contexts, and optional CUDA graphs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from pipeline.aten.types import Leaf
from pipeline.errors import ExecutionError
from pipeline.network.description import Network
from pipeline.runtime.call_plan import ON_CPU, CallPlan, Layout, RunOptions, SegmentRunner, Step
from pipeline.runtime.cuda_graphs import CapturedCall, CudaGraphs
from pipeline.runtime.engine_buffers import ActivationMemory
from pipeline.runtime.engine_context import Contexts
from pipeline.runtime.engine_load import LoadedEngine
from pipeline.runtime.engine_session import EngineSession
from pipeline.runtime.worker import SegmentExecutor
from pipeline.settings import CompilationSettings
from pipeline.trt import trt

T = TypeVar("T")


class StreamOrder:
    """Order the runs of a worker on the streams of a GPU.

    All runs of a worker use the same scratch memory, so a run waits for a previous run on another stream. On the
    default stream TensorRT would synchronize the device, so the worker then runs on a stream of its own, and the two
    streams wait for each other. For the caller all work is ordered as if on the current stream.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._index = device.index or 0
        self._own = torch.cuda.Stream(device)
        self._last, self._handle = self._own, self._own.cuda_stream
        self._event = torch.cuda.Event()

    def is_other_gpu_current(self) -> bool:
        """Return whether the current CUDA device is another GPU than the worker's."""
        return bool(torch._C._cuda_getDevice() != self._index)

    def current_stream(self) -> torch.cuda.Stream:
        """Return the current stream, ordered after the worker's last run."""
        self.current_stream_handle()
        return self._last

    def current_stream_handle(self) -> int:
        """Return the current stream's handle, by torch's internal function, which is ten times faster than
        ``current_stream``."""
        handle: int = torch._C._cuda_getCurrentRawStream(self._index)
        if handle != self._handle:
            self._switch_to(torch.cuda.current_stream(self.device))
        return handle

    def run(self, body: Callable[..., T], *args: object) -> T:
        """Call ``body(stream, *args)`` with the current stream. If that is the default stream, on which TensorRT would
        synchronize the device, the worker's own stream is the current one during the call."""
        if torch._C._cuda_getCurrentRawStream(self._index) != 0:
            return body(self.current_stream(), *args)
        caller = torch.cuda.current_stream(self.device)
        self._make_stream_wait(self._own, caller)
        torch.cuda.set_stream(self._own)
        try:
            return body(self.current_stream(), *args)
        finally:
            torch.cuda.set_stream(caller)
            self._make_stream_wait(caller, self._own)

    def _switch_to(self, stream: torch.cuda.Stream) -> None:
        """Make ``stream`` the worker's stream: it waits for the last run on the former one, except in a capture."""
        if not torch.cuda.is_current_stream_capturing():
            self._make_stream_wait(stream, self._last)
        self._last, self._handle = stream, stream.cuda_stream

    def _make_stream_wait(self, stream: torch.cuda.Stream, awaited: torch.cuda.Stream) -> None:
        """Make ``stream`` wait for the work that has been queued on ``awaited`` so far."""
        self._event.record(awaited)
        stream.wait_event(self._event)


class ProfiledSession:
    """The sessions of an engine with several optimization profiles, one for each: a call runs in the first profile that
    fits its inputs. A session is created at the first call that needs it; all share memory for activations."""

    def __init__(self, network: Network, make: Callable[[torch.cuda.Stream, int], EngineSession]) -> None:
        self.network, self._make = network, make
        self._names = [tensor.name for tensor in network.inputs]
        self._sessions: dict[int, EngineSession] = {}
        self._last: tuple[object, EngineSession] | None = None

    def __call__(
        self, inputs: Sequence[Any], stream: torch.cuda.Stream, *, shapes_key: object = None, **options: Any
    ) -> list[Any]:
        """Run the engine in the profile that fits; arguments and result are those of `EngineSession.__call__`."""
        last = self._last
        if last is not None and shapes_key is not None and last[0] is shapes_key:
            return last[1](inputs, stream, shapes_key=shapes_key, **options)
        place = self.find_profile_index(inputs)
        session = self._sessions.get(place)
        if session is None:
            session = self._sessions.setdefault(place, self._make(stream, place))
        self._last = shapes_key, session
        return session(inputs, stream, shapes_key=shapes_key, **options)

    @property
    def last_session(self) -> EngineSession:
        """The session of the last run.

        Raises:
            ExecutionError: no call has run.
        """
        if self._last is None:
            raise ExecutionError(f"{self.network.name} has not run yet, so it uses no profile", "call the module first")
        return self._last[1]

    @property
    def context(self) -> trt.IExecutionContext:
        """The execution context of the last run."""
        return self.last_session.context

    @property
    def loaded(self) -> LoadedEngine:
        """The engine of the last run."""
        return self.last_session.loaded

    def find_profile_index(self, inputs: Sequence[Any]) -> int:
        """Return the index of the engine's first profile that fits these inputs.

        Raises:
            ExecutionError: no profile fits.
        """
        sizes = (tuple(v.shape) if isinstance(v, torch.Tensor) else (int(v),) for v in inputs)
        shapes = dict(zip(self._names, sizes, strict=True))
        for place, profile in enumerate(self.network.profiles):
            limits = ((low, shapes[name], high) for name, low, _, high in profile.ranges)
            if all(a <= size <= b for row in limits for a, size, b in zip(*row, strict=True)):
                return place
        given = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise ExecutionError(f"{self.network.name} has no optimization profile for the input shapes {given}")


class EngineStep:
    """A `SegmentRunner` that runs an engine, by its ``session``.

    gives: the slot of each output: see `Step`. reuse_outputs: whether the next run may overwrite the outputs.
    """

    def __init__(self, session: EngineSession | ProfiledSession, gives: Sequence[int], reuse_outputs: bool) -> None:
        self.session, self.gives, self.reuse_outputs = session, gives, reuse_outputs

    def __call__(self, inputs: list[Leaf], options: RunOptions) -> Sequence[object]:
        if not options.captured:
            return self.session(inputs, options.stream, reuse_outputs=self.reuse_outputs, shapes_key=options.plan)
        into = {i: options.into[slot] for i, slot in enumerate(self.gives) if slot in options.into}
        return self.session(inputs, options.stream, reuse_outputs=self.reuse_outputs, in_place=True, into=into)


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
        self.lane, self.graphs, self._turn = StreamOrder(device), graphs, ON_CPU
        self._static = layout.is_static
        arena, contexts = ActivationMemory(device), defaultdict[object, Contexts](Contexts)
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

            def make(stream: torch.cuda.Stream, place: int = 0) -> EngineSession:
                known = partial(EngineSession, part, stream, arena, contexts=alike, profile=place)
                return known(engine_graph=launched, updated=held, fixed=fixed)

            several = len(part.network.profiles) > 1
            session = ProfiledSession(part.network, make) if several else self.lane.run(make)
            return EngineStep(session, step.gives, settings.reuse_outputs or _only_engines_read_outputs(layout, step))

        with torch.cuda.device(device):
            runners = [runner(step, part) for step, part in zip(layout.steps, parts, strict=True)]
        self.executor = SegmentExecutor(layout, runners, device)

    def __call__(self, plan: CallPlan, leaves: Sequence[object]) -> list[Leaf]:
        """Return the program's outputs for these inputs; the work is ordered as if queued on the current stream."""
        if self.lane.is_other_gpu_current():
            with torch.cuda.device(self.lane.device):
                return self(plan, leaves)
        if self.graphs is not None:
            graph = self.graphs.find_or_capture(plan, leaves, self)
            if graph is not None:
                return graph(leaves, self.lane.current_stream_handle())
        return self._run(plan, leaves)

    def replay(self, graph: CapturedCall, plan: CallPlan, leaves: Sequence[object]) -> list[Leaf] | None:
        """Replay a graph, and return its outputs; None if another GPU is current, or this worker's graph for the plan
        is not ``graph``, because another worker captured it."""
        if self.lane.is_other_gpu_current() or self.graphs is None or self.graphs.kept.get(plan) is not graph:
            return None
        return graph(leaves, self.lane.current_stream_handle())

    def _run(self, plan: CallPlan, leaves: Sequence[object]) -> list[Leaf]:
        """Return the program's outputs, computed without a CUDA graph and without gradients."""
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self._run(plan, leaves)
        return self.lane.run(self._run_on, plan, leaves)

    def _run_on(self, stream: torch.cuda.Stream, plan: CallPlan, leaves: Sequence[object]) -> list[Leaf]:
        """Run the program's segments on this stream, which must be current; return the outputs."""
        shapes = plan if self._static else None
        if self._turn.stream is not stream or self._turn.plan is not shapes:
            self._turn = RunOptions(stream, shapes)  # reused while calls have the same shapes
        return self.executor(plan, leaves, self._turn)


def _only_engines_read_outputs(layout: Layout, step: Step) -> bool:
    """Return whether all segments that read the outputs of this segment are engines."""
    others = {i for s in layout.steps if s.segment.kind == "torch" for i in s.takes}
    returned = {r.slot for r in layout.returns} | {w.slot for w in layout.writes}
    return not (set(step.gives) & (others | returned))
