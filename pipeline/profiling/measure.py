"""Measure a compiled program on a GPU: segments by CUDA events, and layers by TensorRT's profiler and CUPTI."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch
from attrs import define, field, frozen
from torch.utils._pytree import tree_leaves, tree_map

from pipeline.aten.types import Leaf
from pipeline.compiled import Compiled, CompiledModule
from pipeline.errors import ExecutionError
from pipeline.profiling.assemble import MeasuredTimes, assemble_profile
from pipeline.profiling.kernels import Span, kernels_by_segment
from pipeline.profiling.matching import parse_metadata
from pipeline.program import Segment
from pipeline.records.profile import Profile
from pipeline.runtime.call_plan import RunOptions, SegmentRunner
from pipeline.runtime.cuda_worker import EngineStep
from pipeline.runtime.module import ProgramModule
from pipeline.trt import LIBRARY, has_gpu, trt

RUNS, WARMUP = 50, 10


def measure_profile(
    compiled: Compiled, args: Sequence[object], kwargs: Mapping[str, object], runs: int = RUNS
) -> Profile:
    """Measure a call with these inputs on the current GPU, and return its profile.

    Separate passes, which do not slow one another down, measure the whole call without and with CUDA graphs, each
    segment by CUDA events, each engine's layers by TensorRT's profiler, and kernels by CUPTI. Inputs are copied first.

    Raises:
        ExecutionError: there is no GPU, or an engine does not run here.
        ValueError: ``runs`` is less than 1.
    """
    if not has_gpu():
        raise ExecutionError(
            "profiling needs a GPU, but torch finds none on this machine",
            "save the program, and run `pipeline profile FILE` on a machine with a GPU",
        )
    if runs < 1:
        raise ValueError(f"runs must be at least 1, got {runs}")
    call = Call(args, kwargs)
    with torch.no_grad():
        plain = create_instrumentable(compiled)
        calls = call.measure(plain, runs)
        segments = segment_times(plain, call, runs)
        layers, metadata = layer_times(compiled, call, runs)
        kernels = kernel_times(compiled, call, runs)
        with_graphs = compiled.module("tensorrt", cuda_graphs=True)
        graphs, refused = call.measure(with_graphs, runs), with_graphs.refused_graphs
    graphs, why = ([], refused[0]) if refused else (graphs, "")
    gpu = torch.cuda.get_device_name()
    measured = MeasuredTimes(segments, layers, metadata, kernels, calls, graphs, why, gpu, LIBRARY, call.input_texts)
    return assemble_profile(compiled, measured)


def _copy_to_gpu(value: object) -> object:
    return value.detach().to("cuda", copy=True) if isinstance(value, torch.Tensor) else value


def _copy_inputs(values: Any) -> Any:
    """Return a tuple of the positional inputs, or a dict of the keyword inputs, with copies of tensors on the GPU."""
    return tree_map(_copy_to_gpu, dict(values) if isinstance(values, Mapping) else tuple(values))


@frozen
class Call:
    """A call of a program that can be repeated: it has its own copies of the inputs on the GPU."""

    args: Sequence[object] = field(converter=_copy_inputs)
    kwargs: Mapping[str, object] = field(converter=_copy_inputs)

    def __call__(self, module: CompiledModule) -> object:
        """Call the module with the copied inputs."""
        return module(*self.args, **self.kwargs)

    def warm_up(self, module: CompiledModule, calls: int = WARMUP) -> float:
        """Call the module until kernels, contexts and CUDA graphs exist; return the seconds of the last call."""
        for _ in range(calls):
            torch.cuda.synchronize()
            start = perf_counter()
            self(module)
        torch.cuda.synchronize()
        return perf_counter() - start

    def measure(self, module: CompiledModule, runs: int) -> list[float]:
        """Call the module ``runs`` times; return the milliseconds of each call, measured by CUDA events around it."""
        self.warm_up(module)
        marks = []
        for _ in range(runs):
            start = record_event()
            self(module)
            marks.append((start, record_event()))
        return elapsed_milliseconds(marks)

    @property
    def input_texts(self) -> tuple[str, ...]:
        """Return a short text for each input: the dtype and shape of a tensor, or the value."""
        return tuple(
            f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" if isinstance(x, torch.Tensor) else repr(x)
            for x in tree_leaves((self.args, self.kwargs))
        )


def record_event() -> torch.cuda.Event:
    """Record a new timing event on the current CUDA stream, and return it."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def elapsed_milliseconds(event_pairs: Sequence[tuple[torch.cuda.Event, torch.cuda.Event]]) -> list[float]:
    """Return the milliseconds between the two CUDA events of each pair."""
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in event_pairs]


CYCLES = 2.5e9
"""An upper bound of a GPU's clock rate, in Hz."""


@define
class SegmentTimer:
    """A timer of a segment's kernels that excludes gaps between launches. Before each run, it launches a kernel that
    waits for longer than the host needs to launch the segment (1.5 times ``host``, the shortest launch time in
    seconds), so all kernels are queued before the first one runs. After about 1,000 queued launches the host waits, so
    ``host`` may then include GPU time. ``marks``: CUDA events before and after each run."""

    host: float | None = None
    marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(factory=list)

    def __call__(self, run: SegmentRunner, inputs: list[Leaf], options: RunOptions) -> Sequence[Leaf]:
        """Run the segment, record its GPU time and launch time, and return its outputs. Of the first run, only the
        launch time is kept, which later runs need."""
        if self.host is not None:
            keep_busy(int(1.5 * self.host * CYCLES))
        start, since = record_event(), perf_counter()
        outputs = run(inputs, options)
        end, took = record_event(), perf_counter() - since
        if self.host is not None:
            self.marks.append((start, end))
        self.host = took if self.host is None else min(took, self.host)
        return outputs


def keep_busy(cycles: int) -> None:
    """Keep the current stream busy for a number of GPU clock cycles."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call, unused-ignore]


def create_instrumentable(compiled: Compiled, shared_constants: dict[str, torch.Tensor] | None = None) -> ProgramModule:
    """Return a module for measurements, in which `ProgramModule.instrument` can wrap each segment: it runs without CUDA
    graphs, on the model's own weights. ``shared_constants``: a dict to pass for all programs of one model; modules
    take constants from it, and add missing ones."""
    settings = compiled.settings.evolve(cuda_graphs=False, engine_graphs=False, copy_weights=False)
    return ProgramModule(compiled, "tensorrt", settings, shared_constants)


def segment_times(module: ProgramModule, call: Call, runs: int) -> Mapping[str, list[float]]:
    """Time a call ``runs`` times; return a list of milliseconds, one for each run, by segment name. The timers remain
    attached to the module."""
    timers = attach_timers(module)
    for _ in range(runs + 1):
        call(module)
        torch.cuda.synchronize()
    return {name: elapsed_milliseconds(timer.marks) for name, timer in timers.items()}


def attach_timers(module: ProgramModule) -> Mapping[str, SegmentTimer]:
    """Attach a timer to each segment of a module; later calls run the segments through these timers."""
    timers: defaultdict[str, SegmentTimer] = defaultdict(SegmentTimer)
    module.instrument(lambda segment, run: partial(timers[segment.name], run))
    return timers


class LayerRecorder(trt.IProfiler):  # type: ignore[misc,unused-ignore]
    """A profiler for TensorRT that collects the profiled rows of one engine, as a list for each run."""

    def __init__(self) -> None:
        trt.IProfiler.__init__(self)
        self.rows: list[tuple[str, float]] = []
        self.runs: list[list[tuple[str, float]]] = []

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        """Add a row to the current run; TensorRT calls this method after each layer."""
        self.rows.append((layer_name, ms))

    def end_run(self) -> None:
        """End the current run, so that later rows belong to the next."""
        if self.rows:
            self.runs.append(self.rows)
        self.rows = []


def layer_times(
    compiled: Compiled, call: Call, runs: int
) -> tuple[Mapping[str, list[list[tuple[str, float]]]], Mapping[str, Mapping[str, Sequence[str]]]]:
    """Return two mappings by engine: for each run, the rows of TensorRT's profiler (name and milliseconds); and, by the
    row's name, the names of the network's layers that the engine inspector reports for it."""
    module = create_instrumentable(compiled)
    call.warm_up(module)
    recorders: dict[str, LayerRecorder] = {}
    metadata: dict[str, Mapping[str, Sequence[str]]] = {}

    def attach_recorder(segment: Segment, run: SegmentRunner) -> SegmentRunner:
        if not isinstance(run, EngineStep):
            return run
        context = run.session.context
        recorder = recorders[segment.name] = LayerRecorder()
        inspector = run.session.loaded.cuda_engine.create_engine_inspector()
        inspector.execution_context = context
        metadata[segment.name] = parse_metadata(inspector.get_engine_information(trt.LayerInformationFormat.JSON))
        return partial(record_run, run, context, recorder)

    module.instrument(attach_recorder)
    for _ in range(runs):
        call(module)
    return {name: recorder.runs for name, recorder in recorders.items()}, metadata


def record_run(
    run: SegmentRunner, context: object, recorder: LayerRecorder, inputs: list[Leaf], options: RunOptions
) -> Sequence[Leaf]:
    """Run an engine whose execution ``context`` reports layer times to ``recorder``; then close the recorder's run, so
    that another segment with the same context does not add rows to it."""
    context.profiler = recorder  # type: ignore[attr-defined]
    outputs = run(inputs, options)
    torch.cuda.synchronize()
    if not recorder.rows:
        context.report_to_profiler()  # type: ignore[attr-defined]
    recorder.end_run()
    return outputs


def kernel_times(compiled: Compiled, call: Call, runs: int) -> Mapping[str, list[list[Span]]]:
    """Measure each segment's kernels in each run by CUPTI, via torch's profiler; empty if another profiler runs."""
    module = create_instrumentable(compiled)
    call.warm_up(module)
    order: list[str] = []
    timers: defaultdict[str, SegmentTimer] = defaultdict(SegmentTimer)

    module.instrument(lambda segment, run: partial(run_between_markers, order, segment.name, timers[segment.name], run))
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True)
    try:
        profiler.start()
    except RuntimeError:  # the user's own profiler has CUPTI
        return {}
    try:
        for _ in range(runs + 1):
            call(module)
            torch.cuda.synchronize()
    finally:
        profiler.stop()
    found = (e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA)  # type: ignore[attr-defined]
    spans = [Span(e.name, 1e-3 * e.time_range.start, 1e-3 * e.time_range.elapsed_us()) for e in found]
    return kernels_by_segment(order, spans)


def run_between_markers(
    order: list[str], name: str, timer: SegmentTimer, run: SegmentRunner, inputs: list[Leaf], options: RunOptions
) -> Sequence[Leaf]:
    """Run a segment through its timer, with a marker kernel before and after it, by which `kernels_by_segment` finds
    the segment's kernels. Append the segment's name to ``order``."""
    order.append(name)
    if timer.host is None:
        keep_busy(1)
    outputs = timer(run, inputs, options)
    keep_busy(1)
    return outputs
