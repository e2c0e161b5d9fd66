"""build: one after the other, in threads, in processes; what goes wrong there, and what it leaves behind."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import tempfile
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import nn

import pipeline
from pipeline import BuildError, CompilationSettings, Converted
from pipeline.build import serialized_plans
from pipeline.build.executor_pool import collect_plans
from pipeline.build.monitor import Monitor
from pipeline.build.remote_build import Job, JobWithWeights, RemoteBuild
from pipeline.build.serialized_plans import BuildOrder, PlanFile, serialize
from pipeline.compose.events import report
from pipeline.network.description import describe
from pipeline.network.handle import NetworkHandle
from pipeline.stages import Build, build
from pipeline.trt import CAPABILITIES, Log, new_network, trt

CUT = {"aten.sigmoid.default"}


class Cut(nn.Module):
    """Two engines beside a sigmoid in PyTorch; the second needs the size of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 8), nn.Linear(8, 4)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 16] -> [N, 4]"""
        y = torch.sigmoid(self.norm(self.first(x)))
        return torch.softmax(self.second(y), -1) * x.shape[0]


@pytest.fixture(scope="module")
def converted() -> Converted:
    compile = pipeline.default(torch_executed_ops=CUT, min_block_size=1).until("convert")
    made = compile(Cut().eval(), args=(pipeline.Input(min_shape=(1, 16), max_shape=(8, 16)),))
    assert len(made.networks) == 2
    return made


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        yield executor


def digests(built: Any) -> list[tuple[str, str]]:
    return [(engine.name, engine.digest) for engine in built.engines]


def test_an_engine_is_the_same_whoever_builds_it(converted: Converted, processes: Executor, tmp_path: Path) -> None:
    """A plan is a function of its network: so the replayed network is the original, byte for byte."""
    alone = build(converted)
    with ThreadPoolExecutor(2) as threads:
        assert digests(Build(threads)(converted)) == digests(alone)
    there = Build(processes, folder=tmp_path)(converted)
    assert digests(there) == digests(alone)
    assert [bytes(engine) for engine in there.engines] == [bytes(engine) for engine in alone.engines]
    assert list(tmp_path.iterdir()) == []


def test_pipelines_take_an_executor(processes: Executor) -> None:
    model, x = Cut().eval(), torch.randn(3, 16)
    told: list[str] = []
    compile = pipeline.default(torch_executed_ops=CUT, min_block_size=1, build_executor=processes)
    compiled = compile.observed_by(lambda event: told.append(f"{event.stage} {event.detail}"))(model, args=(x,))
    assert torch.allclose(compiled.module("reference")(x), model(x), atol=1e-6)
    assert {f"build {engine.name}" for engine in compiled.engines} <= set(told)
    swapped = pipeline.default().replace("build", Build(processes))
    assert swapped == pipeline.default().replace("build", Build(processes))
    assert swapped != pipeline.default()


def test_a_parcel_is_written_once_and_opens_elsewhere(converted: Converted, tmp_path: Path) -> None:
    handle = converted.handles[0]
    sent = RemoteBuild(converted.networks[0], tmp_path / "weights", handle)
    assert sent.open_network() is handle and not sent.path.exists()
    pickle.dumps(sent)
    written = sent.path.stat().st_mtime_ns
    arrived = pickle.loads(pickle.dumps(sent))
    assert arrived.handle is None and sent.path.stat().st_mtime_ns == written
    for name, tensor in handle.weights.items():
        assert bytes(arrived.open_network().weights[name]) == tensor.numpy().tobytes()


def test_a_network_that_comes_out_otherwise_is_refused(converted: Converted, tmp_path: Path) -> None:
    network = converted.networks[0]
    first, *rest = network.layers
    other = attrs.evolve(network, layers=(attrs.evolve(first, attributes=(*first.attributes, ("axis", 3))), *rest))
    sent = RemoteBuild(other, tmp_path / "weights", converted.handles[0])
    with pytest.raises(BuildError, match=r"engine_0 cannot be built .*: the network .* differs from the description"):
        pickle.loads(pickle.dumps(sent)).open_network()


def unbuildable(folder: Path) -> Job:
    """TensorRT-RTX takes such a layer, and has no kernels for it."""
    log = Log()
    builder = trt.Builder(log)
    net = new_network(builder)
    layer = net.add_non_zero(net.add_input("x", trt.bool, (4, 4)))
    layer.name = "where"
    net.mark_output(layer.get_output(0))
    network = describe(net, name="engine_7", weight_name=lambda pointer: None)
    order = BuildOrder(network, frozenset(), CompilationSettings())
    return Job(order, RemoteBuild(network, folder / "weights", NetworkHandle(net, builder, log)), folder / "plan")


@pytest.mark.skipif(CAPABILITIES.nonzero, reason="this TensorRT builds the layer")
def test_errors_of_a_worker_have_tensorrts_words(processes: Executor, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"engine_7: .*Error Code"):
        collect_plans(processes, [unbuildable(tmp_path)], report)


def test_what_a_worker_cannot_replay_says_so(converted: Converted, processes: Executor, tmp_path: Path) -> None:
    order = BuildOrder.for_segment(
        converted.partitioned.engine_segments[0], converted.networks[0], CompilationSettings()
    )
    plugin = attrs.evolve(order.network, layers=(attrs.evolve(order.network.layers[0], kind="PLUGIN_V3"),))
    job = Job(order, RemoteBuild(plugin, tmp_path / "weights", converted.handles[0]), tmp_path / "plan")
    with pytest.raises(
        BuildError, match=r"\(PLUGIN_V3\).*digest of a plugin's state\n  hint: build the engine in this process"
    ):
        collect_plans(processes, [job], report)


class Interrupted(Executor):
    """Ctrl-C comes while the first job runs; the second waits."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []
        self.jobs: list[Job] = []

    def submit(self, job: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.jobs.append(job)
        self.futures.append(Future())
        if len(self.futures) == 1:
            self.futures[0].set_exception(KeyboardInterrupt())
        return self.futures[-1]


def test_nothing_more_is_begun_after_an_interrupt(converted: Converted, tmp_path: Path) -> None:
    executor = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        Build(executor, tmp_path)(converted)
    assert executor.futures[1].cancelled() and all(job.remote_build.stopped.is_set() for job in executor.jobs)
    assert list(tmp_path.iterdir()) == []


def order_and_handle() -> tuple[BuildOrder, NetworkHandle]:
    made = pipeline.default().until("convert")(nn.Linear(4, 4).eval(), args=(torch.ones(2, 4),))
    return BuildOrder.for_segment(
        made.partitioned.engine_segments[0], made.networks[0], CompilationSettings()
    ), made.handles[0]


@pytest.fixture
def pythons_own_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("pythons_own_handler")
def test_control_c_ends_a_build(tmp_path: Path) -> None:
    order, handle = order_and_handle()
    phases: list[str] = []

    def tell(phase: str) -> None:
        phases.append(phase)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        serialize(handle, order, PlanFile(tmp_path / "plan"), Monitor(tell))
    assert len(phases) < 5 and (tmp_path / "plan").stat().st_size == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_thread_stops_building_when_told() -> None:
    order, handle = order_and_handle()
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(BuildError, match=r"(?i)cancel"):
        serialize(handle, order, PlanFile(), Monitor(stopped=stopped))


def test_a_plan_is_the_same_streamed_or_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    order, handle = order_and_handle()
    whole = serialize(handle, order, PlanFile(), Monitor())
    monkeypatch.setattr(serialized_plans, "STREAMED", 0)
    assert serialize(handle, order, PlanFile(), Monitor()) == whole


def test_progress_tells_the_builders_phases() -> None:
    told: list[str] = []
    compile = pipeline.default().observed_by(lambda event: told.append(event.detail) if event.stage == "build" else 0)
    compile(nn.Linear(4, 4).eval(), args=(torch.ones(2, 4),))
    assert any(detail.startswith("engine_0: ") for detail in told)


class Forging(Executor):
    """Builds here, and changes a byte of each plan: in the file, or of the bytes that it returns."""

    def __init__(self, sends: bool) -> None:
        self.sends = sends

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do the work at once."""
        future: Future[Any] = Future()
        job = JobWithWeights.from_job(work) if self.sends else work
        found = job()
        if self.sends:
            found = attrs.evolve(found, data=b"?" + found.data[1:])
        else:
            work.path.write_bytes(b"?" + work.path.read_bytes()[1:])
        future.set_result(found)
        return future


@pytest.mark.parametrize("sends", [False, True])
def test_a_plan_other_than_its_builders_is_an_error(sends: bool, converted: Converted) -> None:
    with pytest.raises(BuildError, match=r"engine_\d: the plan that arrived is not the plan that the worker built"):
        Build(Forging(sends))(converted)


def test_a_full_disk_is_told_with_the_place_and_a_hint(converted: Converted) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(
            BuildError, match=rf"its plan cannot be written: .* bytes .*{tempfile.gettempdir()}"
        ) as told:
            build(converted)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert tempfile.gettempdir() in told.value.message and "TMPDIR" in told.value.hint


class Odd(Executor):
    """Gives what it was made with for every job."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """What it was made with."""
        return self.answer


def settled(result: Any = None, error: Exception | None = None, cancelled: bool = False) -> Future[Any]:
    future: Future[Any] = Future()
    if cancelled:
        future.cancel()
        future.set_running_or_notify_cancel()
    elif error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
    return future


ODD: dict[str, tuple[Any, str]] = {
    "no future": (None, r"the executor's submit\(\) returned None, not a Future\n  hint: leave"),
    "no plan": (settled(3), "its worker returned an int instead of an engine plan"),
    "cancelled": (settled(cancelled=True), "the executor cancelled its build\n  hint: shut it down only"),
    "failed": (settled(error=OSError("no disk")), "its build raised OSError in a worker: no disk\n  hint: leave"),
}


@pytest.mark.parametrize("answer, says", ODD.values(), ids=ODD)
def test_an_executor_that_is_none_is_told(answer: Any, says: str, converted: Converted) -> None:
    with pytest.raises(BuildError, match=rf"^engine_\d: {says}"):
        Build(Odd(answer))(converted)


class Crashing(Job):
    """TensorRT ends the worker's process."""

    def __call__(self) -> Any:
        self.path.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_crashes_is_an_error_that_names_the_engine(
    converted: Converted, processes: Executor, tmp_path: Path
) -> None:
    """The last test of the pool: it takes no work any more."""
    orders = [BuildOrder(network, frozenset(), CompilationSettings()) for network in converted.networks]
    jobs = [
        Crashing(order, RemoteBuild(order.network, tmp_path / order.name), tmp_path / f"{order.name}.plan")
        for order in orders
    ]
    with pytest.raises(BuildError, match=r"^engine_0: a worker process crashed or was killed in the build"):
        collect_plans(processes, jobs, report)
    with pytest.raises(BuildError, match="engine_0: the executor did not accept the build"):
        Build(processes)(converted)


@pytest.mark.parametrize(
    "fields",
    [
        {"immutable_weights": False},
        {"strip_engine_weights": True},
        {"refit_identical_engine_weights": True},
        {"refittable_weights": ("0.*",)},
    ],
)
def test_engines_that_take_weights_later_need_a_gpu(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.build.serialized_plans.has_gpu", lambda: False)
    with pytest.raises(pipeline.BuildError, match="needs a machine with a GPU"):
        pipeline.default(**fields)(torch.nn.Sequential(torch.nn.Linear(4, 4)).eval(), args=(torch.randn(2, 4),))


def test_what_has_no_such_weights_is_built_anywhere() -> None:
    linear = torch.nn.Sequential(torch.nn.Linear(4, 4)).eval()
    words = (
        "'other.*' in refittable_weights is not used: the program has no weight of this name "
        "(hint: its weights are 0.bias, 0.weight)"
    )
    for fields in ({"refittable_weights": ("other.*",)}, {"weight_streaming_budget": 1 << 20}):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", pipeline.UnreachedWarning)
            made = pipeline.default(**fields)(linear, args=(torch.randn(2, 4),))
        assert [str(each.message) for each in told] == [words] * ("refittable_weights" in fields)
        assert [(engine.refittable, engine.stripped) for engine in made.engines] == [(False, False)]
    made = pipeline.default(strip_engine_weights=True)(torch.nn.ReLU(), args=(torch.randn(2, 4),))
    assert not made.engines[0].stripped


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"immutable_weights": False}, "leave out immutable_weights=False;"),
        ({"refittable_weights": ("*",)}, "leave out refittable_weights;"),
        (
            {"immutable_weights": False, "strip_engine_weights": True},
            "immutable_weights=False and strip_engine_weights;",
        ),
        ({}, ""),
    ],
)
@pytest.mark.parametrize("version", [(1, 4), (1, 6)])
def test_an_engine_that_refits_where_tensorrt_builds_none_says_how_to_go_on(
    version: tuple[int, ...], fields: dict[str, Any], named: str, converted: Converted, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = attrs.evolve(CAPABILITIES, flavour="tensorrt_rtx", version_tuple=version)
    monkeypatch.setattr(serialized_plans, "CAPABILITIES", known)
    order = BuildOrder(converted.networks[0], frozenset(), CompilationSettings(**fields))
    error = serialized_plans.build_error(order, "CUDA error 222 loading a module")
    assert error.message == f"{order.name}: TensorRT cannot build the engine: CUDA error 222 loading a module"
    assert (named in error.hint and bool(error.hint)) == (version == (1, 6) and bool(named))
    assert not serialized_plans.build_error(order, "out of memory").hint
