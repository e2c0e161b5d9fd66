"""Which engines TensorRT-RTX launches as graphs of its own, on a fake one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipeline import ExecutionError
from pipeline.runtime import engine_session
from pipeline.runtime.engine_buffers import ActivationMemory
from pipeline.runtime.engine_load import LoadedEngine
from pipeline.runtime.engine_session import EngineSession
from pipeline.trt import CAPABILITIES, trt
from tests.runtime.fake_engine import CPU, FakeEngine, FakeStream
from tests.runtime.test_engine_runner import RANGE

pytestmark = pytest.mark.skipif(not CAPABILITIES.runtime_config, reason="graphs of its own are TensorRT-RTX's")


def session(size: int = 2, *, graph: bool = True, **options: Any) -> tuple[EngineSession, Any]:
    engine = FakeEngine({"x": ("float32", (size, 3))}, {"y": ("float32", (size, 3))}, lambda x: [x + 1], **options)
    stream: Any = FakeStream(engine.calls)
    return EngineSession(
        LoadedEngine(engine, engine.network), stream, ActivationMemory(CPU), engine_graph=graph
    ), stream


def launched(session: EngineSession) -> bool:
    strategy = session.context.config.cuda_graph_strategy
    assert strategy in (None, trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE)
    return strategy is not None


def test_an_engine_of_fixed_shapes_is_launched_as_a_graph() -> None:
    assert launched(session()[0])


@pytest.mark.parametrize(
    "options", [{"graph": False}, {"size": -1, "profile": RANGE}, {"host": ("x",)}], ids=["off", "dynamic", "host"]
)
def test_others_are_not(options: dict[str, Any]) -> None:
    assert not launched(session(**options)[0])


def test_an_engine_whose_addresses_change_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too large to be copied has a new address at every call."""
    monkeypatch.setattr(engine_session, "COPIED", 23)
    assert not launched(session()[0])


def test_a_graph_is_not_captured_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    run, stream = session()
    with pytest.raises(ExecutionError, match=r"(?s)no other CUDA graph can capture it.*engine_graphs=False"):
        run([torch.ones(2, 3)], stream)
    assert not [call for call in run.context.calls if call[0] == "execute_async_v3"]
    plain, stream = session(graph=False)
    assert torch.equal(plain([torch.ones(2, 3)], stream)[0], torch.full((2, 3), 2.0))
