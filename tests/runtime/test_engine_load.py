"""Plans that load and plans that do not, and what is said of those."""

from __future__ import annotations

import hashlib
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve

import pipeline
from pipeline import ExecutionError
from pipeline.artifact.load import load_without_warning
from pipeline.compiled import Compiled
from pipeline.network.engine import Engine
from pipeline.records.kernels import Kernels
from pipeline.runtime import engine_cache, engine_load, program_engines
from pipeline.runtime.engine_cache import RuntimeCache
from pipeline.runtime.engine_load import LIBRARY, LOG, LoadedEngine, collect_errors
from pipeline.runtime.program_engines import LoadResults, compile_kernels, load_engine, try_loading_engines
from pipeline.stages import unbuilt
from tests.runtime.engine_runner import EngineRunner
from tests.runtime.fake_engine import FakeEngine, say
from tests.verification.test_loading import noted

X = torch.arange(6.0).reshape(2, 3)
NETWORK = FakeEngine({"x": ("float32", (3,))}, {"y": ("float32", (3,))}, lambda x: [x]).network


def test_what_tensorrt_says_is_forgotten_when_nobody_listens() -> None:
    with collect_errors() as outer:
        say("first")
        with collect_errors() as inner:
            say("second")
            assert inner() == "second"
        assert outer() == "first; second"
    assert not LOG.messages
    with collect_errors() as said:
        assert said() == "TensorRT gave no reason"


ENGINE = Engine("engine_0", b"no plan", LIBRARY)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were one."""
    monkeypatch.setattr(engine_load, "has_gpu", lambda: True)


@pytest.mark.usefixtures("gpu")
def test_a_plan_of_another_library_is_not_even_tried() -> None:
    other = evolve(ENGINE, library="tensorrt 10.1.0")
    with pytest.raises(
        ExecutionError, match=rf"engine_0 was built by tensorrt 10.1.0, but this process uses {LIBRARY}"
    ) as info:
        engine_load.load(other)
    assert "PIPELINE_TENSORRT=tensorrt" in str(info.value)


@pytest.mark.usefixtures("gpu")
def test_a_plan_that_does_not_load_is_an_error_with_tensorrts_words() -> None:
    with pytest.raises(ExecutionError, match=r"engine_0 cannot be loaded \(.+\)"):
        engine_load.load(ENGINE)
    older = evolve(ENGINE, library=f"{LIBRARY.split()[0]} 0.1")
    with pytest.raises(
        ExecutionError, match=rf"engine_0 cannot be loaded: it was built by .* 0.1, but {LIBRARY} loads only its own"
    ):
        engine_load.load(older)


GAP = "Compatible cubin or ptx module for device target '90' not found"


class Engine90(FakeEngine):
    """An engine that gets a context if nothing is said against it."""

    def __init__(self, words: str) -> None:
        super().__init__({"x": ("float32", (3,))}, {"y": ("float32", (3,))}, lambda x: [x])
        self.words = words

    def create_execution_context(self, runtime_config: Any) -> Any:
        if self.words:
            say(self.words)
        return None if self.words else super().create_execution_context(runtime_config)


class FakeGpu:
    """A GPU of compute capability 9.0, and what TensorRT says against engines on it; ``loads``: those it was asked
    for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.words, self.loads, self.caches = dict[str, str](), list[str](), list[RuntimeCache]()
        for module in (engine_load, program_engines):
            monkeypatch.setattr(module, "has_gpu", lambda: True)
        monkeypatch.setattr(engine_load, "load", self.load)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
        monkeypatch.setattr(RuntimeCache, "create_once", lambda cache, engine: self.caches.append(cache))
        monkeypatch.setattr(RuntimeCache, "serialize", lambda cache: b"kernels")
        monkeypatch.setattr(engine_cache, "kernels_key", lambda networks: "key")
        monkeypatch.setattr(engine_cache, "_path_for_this_gpu", lambda path: path.with_stem("own"))
        for module in (engine_cache, program_engines):
            monkeypatch.setattr(module, "machine_key", lambda: "this GPU")

    def load(self, engine: Engine, targets: tuple[str, ...]) -> FakeEngine:
        self.loads.append(engine.name)
        return Engine90(self.words.get(engine.name, ""))


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


def program(digests: str, **settings: Any) -> Compiled:
    """A program with an engine for each digest, called a, b, c…"""
    made = pipeline.default(**settings).replace("build", unbuilt)(torch.nn.ReLU().eval(), (X,))
    names = "abcd"[: len(digests)]
    engines = tuple(Engine(n, b"plan", LIBRARY, digest=d) for n, d in zip(names, digests, strict=True))
    return evolve(made, engines=engines, networks=tuple(evolve(NETWORK, name=n) for n in names))


def test_each_plan_is_loaded_once_and_those_that_do_not_load_are_told(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    fake_gpu.words = {"a": GAP}
    found = try_loading_engines(program("1213", runtime_cache=tmp_path), keep=False)
    assert found is not None and sorted(fake_gpu.loads[:3]) == ["a", "b", "d"] and not found.kernels
    assert fake_gpu.loads[3:] == ["a"], "what fails beside others is loaded again alone"
    assert list(found.refused) == ["a", "c"] and f"refused an execution context ({GAP})" in found.refused["c"]
    assert {cache.path for cache in fake_gpu.caches} == {None}, "kernels of engines that are tried are kept nowhere"


def test_kernels_of_engines_that_load_are_kept_for_the_first_call(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    on_disk = try_loading_engines(program("12", runtime_cache=tmp_path), keep=True)
    assert on_disk == LoadResults() and {cache.path for cache in fake_gpu.caches} == {tmp_path / "key.kernels"}
    in_memory = try_loading_engines(program("12", runtime_cache=False), keep=True)
    assert in_memory is not None and in_memory.kernels == Kernels("this GPU", b"kernels")


def test_kernels_of_several_engines_are_compiled_at_a_time(fake_gpu: FakeGpu) -> None:
    fake_gpu.words = {"b": GAP}
    made, barrier, names = program("1234"), threading.Barrier(2, timeout=20), list[str]()

    def created(engine: Engine90, runtime_config: Any) -> Any:
        names.append(threading.current_thread().name)
        barrier.wait()
        return None if engine.words else object()

    engines = [load_engine(made, i, made.settings, None, {}) for i in range(4)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine90, "create_execution_context", created)
        patch.setattr(program_engines, "THREADS", 2)
        for cache in (None, RuntimeCache(None, b"kernels"), RuntimeCache(None)):
            if cache is not None:
                cache._size = len(cache.stored_kernels() or b"")
            compile_kernels([*engines, engines[0], print], cache)
            compile_kernels(engines[:1], cache)
    assert len(names) == 4 and all(name.startswith("pipeline-load") for name in names)


def test_kernels_of_this_machine_take_the_place_of_a_file(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    ours, other = Kernels("this GPU", b"kernels"), Kernels("another GPU", b"kernels")

    def cache(kernels: Kernels, folder: Path | bool) -> tuple[Path | None, bytes | None]:
        found = RuntimeCache.open([NETWORK], folder, kernels)
        return (None, None) if found is None else (found.path, found.stored_kernels())

    path = tmp_path / "key.kernels"
    assert cache(ours, False) == cache(ours, tmp_path) == (None, b"kernels"), "no cache stores what a file brought"
    assert cache(other, False) == (None, None) and cache(other, tmp_path) == (path, None)
    path.write_bytes(b"own" + hashlib.sha256(b"own").digest())
    assert cache(ours, tmp_path) == (path, b"own")


def test_a_file_has_the_kernels_of_the_machine_that_wrote_it(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    compile, path = pipeline.default(runtime_cache=tmp_path).replace("build", noted), tmp_path / "p.trtp"
    made = compile(torch.nn.Tanh().eval(), (X,))
    made.save(path)
    assert not load_without_warning(path, ()).kernels
    (tmp_path / "key.kernels").write_bytes(b"own" + hashlib.sha256(b"own").digest())
    made.save(path)
    again = load_without_warning(path, ())
    assert again.kernels == Kernels("this GPU", b"own")
    again.save(tmp_path / "q.trtp")
    assert load_without_warning(tmp_path / "q.trtp", ()).kernels == again.kernels
    data = path.read_bytes()
    at = data.index(b"own")
    path.write_bytes(data[:at] + b"not" + data[at + 3 :])
    with pytest.raises(pipeline.ArtifactError, match="kernels"):
        load_without_warning(path, ())


def test_nothing_is_said_of_engines_for_other_gpus_or_without_memory(fake_gpu: FakeGpu) -> None:
    fake_gpu.words = {"a": "Requested amount of GPU memory (1 bytes) could not be allocated"}
    assert try_loading_engines(program("1"), keep=True) is None
    assert try_loading_engines(program("1", compute_capabilities=("8.9",)), keep=True) is None
    assert fake_gpu.loads == ["a", "a"]


@pytest.mark.usefixtures("fake_gpu")
@pytest.mark.parametrize(
    ("targets", "told"),
    [
        ((), "compile the program on this GPU, with load_built_engines=True"),
        (("8.6", "8.9"), "built for compute capability 8.6, 8.9, and a GPU has 9.0: compile the program on this GPU"),
    ],
)
def test_an_engine_without_a_context_says_what_to_do(targets: tuple[str, ...], told: str) -> None:
    loaded = LoadedEngine(Engine90(GAP), NETWORK, targets=targets)
    with pytest.raises(ExecutionError) as info, collect_errors() as said:
        loaded.new_context(said)
    assert GAP in info.value.message and told in str(info.value)


def test_without_a_gpu_the_error_says_so() -> None:
    with pytest.raises(ExecutionError, match="engine_0 needs a GPU, but torch finds none"):
        EngineRunner(ENGINE, NETWORK)
    compiled = pipeline.default(min_block_size=1)(Doubled().eval(), args=(X,))
    with pytest.raises(ExecutionError, match="GPU"):
        compiled.module(executor="tensorrt")


class Doubled(torch.nn.Module):
    """With a buffer that it changes, which a module would put on the GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[2, 3] -> [2, 3]"""
        self.count += 1
        return x + x
