"""The communicator of a process group, as TensorRT takes it."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import ExecutionError
from pipeline.runtime import engine_context, ranks
from pipeline.runtime.engine_buffers import ActivationMemory
from pipeline.runtime.engine_load import LoadedEngine
from pipeline.runtime.engine_session import EngineSession
from pipeline.trt import CAPABILITIES
from tests.runtime.fake_engine import CPU, FakeEngine, FakeStream


def test_a_capsule_points_at_the_communicator(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimpleNamespace(_get_backend=lambda device: SimpleNamespace(_comm_ptr=lambda: 0x1234))
    monkeypatch.setattr(ranks, "find_group", lambda name: group)
    capsule = ranks.nccl_communicator("0")
    form = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    assert form(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, b"ncclComm_t") == 0x1234


def test_an_engine_with_collectives_gets_it_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_context, "nccl_communicator", lambda name: f"that of {name}")
    engine = FakeEngine({"x": ("float32", (3,))}, {"y": ("float32", (3,))}, lambda x: [x])
    loaded, stream = LoadedEngine(engine, engine.network, group="3"), FakeStream(engine.calls)
    made: Any = EngineSession(loaded, stream, ActivationMemory(CPU), engine_graph=True)
    assert engine.calls[0] == ("set_communicator", "that of 3")
    if CAPABILITIES.runtime_config:
        assert made.context.config.cuda_graph_strategy is None, "TensorRT-RTX launches it as no graph of its own"
    engine.refuse = {"set_communicator"}
    with pytest.raises(ExecutionError, match=r"refused the communicator of group 3 .*fake set_communicator error"):
        EngineSession(loaded, stream, ActivationMemory(CPU))
