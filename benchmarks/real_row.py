"""One row of ``benchmarks.real``: a model at real size in one dtype, compiled, compared and measured here."""

from __future__ import annotations

import contextlib
import copy
import fcntl
import json
import logging
import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import pipeline
from benchmarks.environment import environment
from benchmarks.floors import speeds, work
from benchmarks.gpu import HostMemory
from benchmarks.methods import METHODS, Call, Clock, inductor, mode
from benchmarks.real import MEASURING
from benchmarks.real_models import Inputs, Row
from benchmarks.real_tables import OURS
from benchmarks.turns import REST, in_turns
from pipeline.cli.usage import first_line
from pipeline.stages.choose import Choose, measure_segments
from pipeline.verification.eager import use_tf32

LIBRARIES = ("transformers", "diffusers", "timm", "torchvision")
HOW = {**METHODS, "torch.compile max-autotune": partial(inductor, mode="max-autotune")}
ROUNDS, WARM_UP, AT_MOST = 3, 3, 50
SECONDS = 0.25
"""How long the calls of one turn take, if they are at least 3 and at most ``AT_MOST``."""
Outputs = Sequence[torch.Tensor]


class Turns:
    """Who uses the GPU of several processes: many at once for short things, one alone to measure time.

    A process that waits to be alone keeps others from coming in meanwhile. Locks end with their process; those of other
    users do not count. ``waited``: the seconds that this process has waited so far.
    """

    def __init__(self, folder: Path) -> None:
        self.gate, self.door = folder / "gate", folder / "door"
        self.waited = 0.0

    @contextlib.contextmanager
    def held(self, alone: bool = False) -> Iterator[None]:
        """Within it, no other process is alone; none at all is there if this one is ``alone``."""
        start = time.perf_counter()
        with self.door.open("w") as door:
            with self.gate.open("w") as gate:
                fcntl.flock(gate, fcntl.LOCK_EX)
                fcntl.flock(door, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            self.waited += time.perf_counter() - start
            with urgent() if alone else contextlib.nullcontext():
                yield


@contextlib.contextmanager
def urgent() -> Iterator[None]:
    """Within it, the host runs this process before others, if the user may ask for that, and on cores of its own, if
    `benchmarks.real` left some free, so that calls are launched in time while others compile."""
    before, cores = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    move_to_cores({int(core) for core in os.environ.get(MEASURING, "").split(",") if core} or cores)
    try:
        yield
    finally:
        move_to_cores(cores)
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before)


def move_to_cores(cores: set[int]) -> None:
    """Run all threads of this process on these cores."""
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            os.sched_setaffinity(int(thread.name), cores)


def of_this_gpu() -> Path:
    """The folder with the locks of the GPU that this process sees, the same for all runs on this machine."""
    folder = (
        Path(tempfile.gettempdir()) / f"benchmarks-real-{os.getuid()}" / os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Report:
    """What is known of a row, in a file that is current at each moment, for whoever has to end this process."""

    def __init__(self, path: Path, **found: Any) -> None:
        self.path = path
        self.found: dict[str, Any] = {**found, "seconds": {}}

    def write(self, **more: Any) -> None:
        """Add this, and write it down."""
        self.found |= more
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.found), encoding="utf-8")
        new.replace(self.path)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Within it, the row is in this phase, whose seconds it has afterwards."""
        self.write(phase=name)
        start = time.perf_counter()
        yield
        self.found["seconds"][name] = round(time.perf_counter() - start, 2)


def run(
    row: Row,
    dtype: str,
    device: str,
    report: Report,
    turns: Turns,
    methods: Sequence[str] | None = None,
    exact: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Return the row's results; ``failed`` says in which phase what happened, if it did.

    methods: what is timed beside ours; None: nothing is timed. exact: compile with ``use_fp32_acc=True``, with which
    networks of convolutions have the bound of others. settings: others to compile with.
    """
    bound = 2 if exact else row.bound
    report.write(
        exact=exact, name=row.name, shapes=row.shapes, dtype=dtype, device=device, bound=bound, routed=row.routed
    )
    report.write(torch_compile=settings.get("torch_compile") or "")
    report.write(environment=environment([name for name in LIBRARIES if _installed(name)]))
    on_gpu = device != "cpu"
    stream = torch.cuda.stream(torch.cuda.Stream()) if on_gpu else contextlib.nullcontext()
    try:
        with stream, torch.no_grad(), use_tf32(False):
            calls = _compared(row, getattr(torch, dtype), device, report, turns, settings)
            if on_gpu and methods is not None:
                _measured(calls, methods, report, turns)
        report.write(phase="done")
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).strip()}"[:500]
        report.write(failed={"phase": report.found.get("phase", ""), "error": said})
    return report.found


def _installed(library: str) -> bool:
    """Whether the library's version is known, which one that only lies on the path has not."""
    try:
        return bool(version(library))
    except PackageNotFoundError:
        return False


def _compared(
    row: Row, dtype: torch.dtype, device: str, report: Report, turns: Turns, settings: dict[str, Any]
) -> dict[str, Any]:
    """The model, its inputs and our module, after the errors of both were found."""
    with turns.held(), report.phase("make"):
        model, inputs = row.built(device, dtype)
    with turns.held(), report.phase("reference"):
        best, moved = reference(model, inputs)
    with turns.held(), report.phase("eager"):
        own = errors(model(**inputs), best)
    report.write(outputs=[list(each.shape) for each in best], moved=moved, eager_error=max(own))
    with turns.held(), contextlib.suppress(NotImplementedError, AssertionError):  # operators that nothing counts
        report.write(work=work(model, lambda: model(**inputs), inputs))
    _reset()
    module = _compiled(model, inputs, device, report, turns, settings)
    with turns.held(), report.phase("first call"):
        result = module(**inputs)
        synchronize()
    seconds = report.found["seconds"]
    seconds["load"] = round(seconds.pop("module") + seconds.pop("first call"), 2)
    seconds["first result"] = round(sum(seconds[name] for name in ("compile", "load")), 2)
    ours = errors(result, best)
    report.write(error=max(ours), ratio=ratio(ours, own, dtype), **_memory())
    return {"model": model, "inputs": inputs, "module": module}


def reference(model: torch.nn.Module, inputs: Inputs) -> tuple[Outputs, float]:
    """What the model returns in float32, with the same rounded weights and inputs; and how far the output that moves
    least is from that, relative to its norm, with inputs in reverse: an output that hardly moves shows no errors."""
    exact = copy.deepcopy(model).float()
    given = {k: v.float() if v.is_floating_point() else v for k, v in inputs.items()}
    found: Outputs = exact(**given)
    others: Outputs = exact(**{name: value.flip(list(range(value.dim()))) for name, value in given.items()})
    return found, min(errors(others, found))


def errors(actual: Outputs, expected: Outputs) -> list[float]:
    """For each output, the L2 norm of its difference relative to the reference's norm."""
    norm = torch.linalg.vector_norm
    pairs = zip(actual, expected, strict=True)
    found = [float(norm(a.float() - e, dtype=torch.float64) / norm(e, dtype=torch.float64)) for a, e in pairs]
    if not all(each < float("inf") for each in found):
        raise ValueError(f"an output is not finite, or the reference is 0: relative errors {found}")
    return found


def ratio(ours: Sequence[float], own: Sequence[float], dtype: torch.dtype) -> float:
    """How many times eager's error ours is, for the worst output. Eager's counts as an eighth of the dtype's epsilon at
    least, half of what rounding the exact result alone gives."""
    least = torch.finfo(dtype).eps / 8
    return round(max(a / max(b, least) for a, b in zip(ours, own, strict=True)), 3)


def compiler(turns: Turns, device: str, **settings: Any) -> pipeline.Pipeline:
    """What compiles with CUDA graphs; it measures when no other process uses the GPU."""
    alone = partial(measure_segments, measuring_context=partial(turns.held, alone=True))
    return pipeline.default(cuda_graphs=device != "cpu", **settings).replace("choose", Choose(alone))


def _compiled(
    model: torch.nn.Module, inputs: Inputs, device: str, report: Report, turns: Turns, settings: dict[str, Any]
) -> torch.nn.Module:
    memory, ledger, before = HostMemory(), pipeline.Ledger(interval=0.1), turns.waited
    with report.phase("compile"), _said(report):
        compile = compiler(turns, device, use_fp32_acc=True if report.found["exact"] else None, **settings)
        compiled = compile.observed_by(ledger, _stages(report))(model, (), inputs)
    fallback = compiled.coverage.fallback
    counts, reasons = Counter(each.target for each in fallback), {each.target: each.reason for each in fallback[::-1]}
    waited, seconds = turns.waited - before, dict(ledger.seconds)  # `choose` waits until the GPU is free to measure
    report.found["seconds"]["compile"] = round(report.found["seconds"]["compile"] - waited, 2)
    seconds |= {"choose": seconds["choose"] - waited} if "choose" in seconds else {}
    report.write(
        stages={name: round(each, 2) for name, each in seconds.items()},
        operators=compiled.coverage.total,
        engines=len(compiled.engines),
        engine_mb=round(sum(len(memoryview(each.plan)) for each in compiled.engines) / 1e6),
        fallbacks=len(fallback),
        reasons=[{"target": t, "reason": reasons[t], "nodes": n} for t, n in counts.most_common(5)],
        host_peak_mb=memory.peak_mb(),
    )
    with report.phase("module"):
        executor = "reference" if device == "cpu" else "tensorrt"
        return compiled.module(executor)


@contextlib.contextmanager
def _said(report: Report) -> Iterator[None]:
    """Within it, the report has what the package logs: its warnings, and what `choose` and torch.compile say."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage()[:300])  # type: ignore[method-assign]
    loud = logging.getLogger("pipeline")
    own = [logging.getLogger(f"pipeline.{name}") for name in ("stages.choose", "runtime.compiled_segment")]
    before = [each.level for each in own]
    loud.addHandler(handler)
    for each in own:
        each.setLevel(logging.INFO)
    try:
        yield
    finally:
        loud.removeHandler(handler)
        for each, level in zip(own, before, strict=True):
            each.setLevel(level)
        report.write(said=list(dict.fromkeys(said))[:20])


def _stages(report: Report) -> Callable[[pipeline.Event], object]:
    """An observer that notes the stage, so that a row whose process is ended says in which it was."""
    return lambda event: report.write(phase=event.stage) if event.kind == "started" else None


def _measured(given: dict[str, Any], methods: Sequence[str], report: Report, turns: Turns) -> None:
    """Add the times of our module, and of other methods; eager's without a graph if it cannot be recorded in one."""
    model, inputs, module = given["model"], given["inputs"], given["module"]
    calls: dict[str, Call] = {OURS: lambda: module(**inputs)}
    refused: dict[str, str] = {}
    ready = time.monotonic()
    waiting = list(methods)
    while waiting:
        method = waiting.pop(0)
        try:
            # Most of torch.compile's time is the host's: the GPU is not kept for it.
            turn = contextlib.nullcontext() if method == "torch.compile reduce-overhead" else turns.held()
            with turn:
                with report.phase(method):
                    call = HOW[method](model, inputs, Clock())
                    call()
                    torch.cuda.synchronize()
                with mode(method):
                    _repeated(call)  # torch.compile records its graph at a later call than the first
            calls[method] = call
        except Exception as error:
            refused[method] = f"{type(error).__name__}: {first_line(error)}"[:300]
            report.write(refused=refused)
            waiting += ["eager"] * (method == "eager + graph")
    time.sleep(max(0.0, REST - (time.monotonic() - ready)))
    with turns.held(alone=True), report.phase("measure"):
        report.write(ms=measured(calls))
        if torch.cuda.is_available():
            report.write(speeds=speeds(getattr(torch, report.found["dtype"])))


def _repeated(call: Call) -> None:
    for _ in range(WARM_UP):
        call()
    torch.cuda.synchronize()


def measured(calls: dict[str, Call]) -> dict[str, dict[str, float]]:
    """Two measures of each call, of its quietest turn: ms of the GPU for a call that is awaited, and ms for one of many
    that are not."""
    for name, call in calls.items():
        with mode(name):
            _repeated(call)
    start = time.perf_counter()
    next(iter(calls.values()))()
    torch.cuda.synchronize()
    count = min(AT_MOST, max(3, round(SECONDS / (time.perf_counter() - start))))
    times = in_turns(calls, mode, rest=0, rounds=ROUNDS, warm_up=WARM_UP, count=count)
    return {
        name: {"gpu_ms": found["gpu_ms_quiet"], "queued_ms": round(1e3 / found["calls_per_second_quiet"], 4)}
        for name, found in times.items()
    }


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _reset() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _memory() -> dict[str, int]:
    """Megabytes: the most that PyTorch allocated since `_reset`, and what the GPU's driver counts for this process,
    where it tells."""
    if not torch.cuda.is_available():
        return {}
    peak = {"peak_mb": round(torch.cuda.max_memory_allocated() / 1e6)}
    asked = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=10).stdout
        used = {int(pid): int(mb) for pid, mb in (line.split(",") for line in said.splitlines())}
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return peak
    return peak | ({"process_mb": used[os.getpid()]} if os.getpid() in used else {})
