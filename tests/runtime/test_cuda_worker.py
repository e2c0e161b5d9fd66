"""The way of a call to an engine and back, on a fake engine: what is asked of TensorRT at each call, and what not."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from pipeline.compiled import CompiledModule
from pipeline.network.description import Tensor
from pipeline.runtime import cuda_worker
from pipeline.runtime.call_plan import RunOptions
from pipeline.runtime.cuda_worker import CudaWorker, EngineStep
from pipeline.runtime.engine_load import LoadedEngine
from pipeline.runtime.worker import Pool
from pipeline.trt import CAPABILITIES
from tests.runtime.fake_engine import CPU, FakeContext, FakeEngine, FakeLane

pytestmark = pytest.mark.skipif(not CAPABILITIES.runtime_config, reason="the fake engine is TensorRT-RTX's")

ENQUEUES = ["execute_async_v3"]


class Linear(nn.Module):
    """[B, 3] -> [B, 2]"""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


class Chosen(nn.Module):
    """[B, 3] -> [C, 2]: PyTorch chooses rows by their values, then an engine goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = x[x[:, 0] > 0]
        torch._check(chosen.shape[0] <= 4)
        return self.linear(chosen)


def _rows(tensors: tuple[Tensor, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {t.name: (t.dtype, t.shape) for t in tensors}


def _run(part: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    assert not torch.is_grad_enabled()
    return part(list(inputs))


def driven(compiled: pipeline.Compiled, monkeypatch: pytest.MonkeyPatch) -> tuple[CompiledModule, list[FakeEngine]]:
    """A module whose engines are fakes that compute as the reference does, and those engines."""
    monkeypatch.setattr(cuda_worker, "StreamOrder", FakeLane)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    module = compiled.module(executor="reference")
    parts, networks = list(module._parts), iter(compiled.networks)
    engines: list[FakeEngine] = []
    for i, segment in enumerate(compiled.partitioned.segments):
        if segment.kind == "torch":
            continue
        network, run = next(networks), partial(_run, parts[i])
        engine = FakeEngine(_rows(network.inputs), _rows(network.outputs), run, profile=network.profile)
        engines.append(engine)
        parts[i] = LoadedEngine(engine, network)
    module._parts = parts
    module._workers = Pool(partial(CudaWorker, module._layout, parts, CPU, module.settings, None), 1)
    return module, engines


def asked(engine: FakeEngine) -> list[str]:
    """The names of the calls since the last time."""
    names = [call if isinstance(call, str) else call[0] for call in engine.calls]
    engine.calls.clear()
    return names


@pytest.mark.parametrize("grad", [True, False])
def test_a_call_like_the_last_one_only_enqueues(grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Linear().eval()
    module, [engine] = driven(pipeline.default()(model, args=(torch.randn(2, 3),)), monkeypatch)
    with torch.set_grad_enabled(grad):
        for i in range(5):
            x = torch.randn(2, 3)
            result = module(x)
            torch.testing.assert_close(result, model(x).detach())
            assert not result.requires_grad
            assert torch.is_grad_enabled() is grad
            assert asked(engine) == ENQUEUES or i < 2


def test_shapes_that_change_are_told_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Linear().eval()
    shapes = ({0: Dim("batch", min=1, max=8)},)
    compiled = pipeline.default()(model, args=(torch.randn(2, 3),), dynamic_shapes=shapes)
    module, [engine] = driven(compiled, monkeypatch)
    for batch in (2, 4, 4, 4, 2, 2, 4):
        x = torch.randn(batch, 3)
        torch.testing.assert_close(module(x), model(x).detach())
    asked(engine)
    for batch, told in ((4, False), (2, True), (2, False)):
        module(torch.randn(batch, 3))
        assert ("set_input_shape" in asked(engine)) is told


def test_shapes_that_data_decide_are_told_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of one plan differ in what the second segment is given."""
    model = Chosen().eval()
    compiled = pipeline.default(min_block_size=1)(model, args=(torch.randn(4, 3),))
    module, _ = driven(compiled, monkeypatch)
    assert [s.kind for s in compiled.partitioned.segments][-1] == "engine"
    for count in (1, 3, 3, 2, 4):
        x = torch.cat([torch.ones(count, 3), -torch.ones(4 - count, 3)])
        torch.testing.assert_close(module(x), model(x).detach())
    assert len(module._plans) == 1


def test_a_refused_call_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Linear().eval()
    module, [engine] = driven(pipeline.default()(model, args=(torch.randn(2, 3),)), monkeypatch)
    x = torch.randn(2, 3)
    for refused in ("execute_async_v3", "infer_shapes", "set_input_shape"):
        module(x)
        engine.refuse.add("execute_async_v3")
        engine.refuse.add(refused)
        for _ in range(2):
            with pytest.raises(pipeline.ExecutionError, match="fake"):
                module(x)
        engine.refuse.clear()
        torch.testing.assert_close(module(x), model(x).detach())


@pytest.mark.parametrize("on_gpu", [False, True])
def test_segments_run_by_what_wraps_them(on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Chosen().eval()
    compiled = pipeline.default(min_block_size=1)(model, args=(torch.randn(4, 3),))
    module = driven(compiled, monkeypatch)[0] if on_gpu else compiled.module(executor="reference")
    ran: list[tuple[str, bool]] = []

    def told(name: str, run: Callable[..., Any], inputs: list[Any], turn: RunOptions) -> Any:
        ran.append((name, turn.stream is not None))
        return run(inputs, turn)

    module.instrument(lambda segment, run: partial(told, segment.name, run))
    x = torch.randn(4, 3)
    torch.testing.assert_close(module(x), model(x).detach())
    assert ran == [(segment.name, on_gpu) for segment in compiled.partitioned.segments]


def test_an_engine_is_told_of_each_run_by_an_argument() -> None:
    calls: list[Any] = []

    def session(inputs: list[Any], stream: Any, **told: Any) -> list[Any]:
        calls.append((inputs, stream, told))
        return []

    step: Any = EngineStep(session, gives=(4, 5), reuse_outputs=True)  # type: ignore[arg-type]
    plan: Any = object()
    memory = torch.empty(1)
    step([1], RunOptions("first", plan))
    step([2], RunOptions("second", plan, captured=True, into={5: memory, 9: memory}))
    step([3], RunOptions("third"))
    assert calls == [
        ([1], "first", {"reuse_outputs": True, "shapes_key": plan}),
        ([2], "second", {"reuse_outputs": True, "in_place": True, "into": {1: memory}}),
        ([3], "third", {"reuse_outputs": True, "shapes_key": None}),
    ]
    with pytest.raises(AttributeError):
        RunOptions().captured = True  # type: ignore[misc]


@pytest.mark.usefixtures("without_collector")
class Apart(nn.Module):
    """[B, 3] -> [B, 3]: two engines, and PyTorch between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.erfinv(torch.tanh(self.first(x)))))


def test_all_engines_are_lent_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine of several profiles has its contexts when it first runs, after others were lent memory."""
    model, x = Apart().eval(), torch.randn(2, 3)
    compile = pipeline.default(min_block_size=1, torch_executed_ops=(torch.ops.aten.erfinv,))
    rows = Dim("rows", min=2, max=8)
    module, engines = driven(compile(model, args=(x,), profiles=[({0: 1},), ({0: rows},)]), monkeypatch)
    assert len(engines) == 2
    engines[1].device_memory_size_v2 = 1 << 20
    lent: dict[FakeContext, int] = {}
    monkeypatch.setattr(FakeContext, "set_device_memory", lambda self, at, size: lent.update({self: at}))
    for count in (2, 1, 2, 1):
        given = torch.randn(count, 3)
        torch.testing.assert_close(module(given), model(given))
    assert len(lent) == 4 and len(set(lent.values())) == 1


def test_a_module_that_is_dropped_is_freed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory on a GPU that waits for the garbage collector is memory that the next module does not get."""
    compiled = pipeline.default(min_block_size=1)(Chosen().eval(), args=(torch.randn(4, 3),))
    module, engines = driven(compiled, monkeypatch)
    module(torch.randn(4, 3))
    [worker] = module._workers._free
    runners = [run for run in worker.executor.runners if hasattr(run, "session")]
    watched = [weakref.ref(o) for o in (module, worker, *module._parts, *engines, *(r.session.arena for r in runners))]
    del module, engines, worker, runners
    assert [o() for o in watched if o() is not None] == []
