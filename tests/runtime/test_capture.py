"""What a capture of a CUDA graph calls, in order, when it ends and when it fails."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.runtime import graph_copies
from pipeline.runtime.capture import capture

OK, ACTIVE, GIVEN_UP = "success", "active", "given up"
STREAM: Any = SimpleNamespace(cuda_stream=7)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of torch and CUDA, by name."""
    said = list[str]()

    def stand_in(name: str, result: tuple[object, ...] = ()) -> Any:
        return lambda *args, **kwargs: said.append(name) or result

    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", stand_in("clear"), raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    cudart = SimpleNamespace(
        cudaError_t=SimpleNamespace(cudaSuccess=OK),
        cudaStreamCaptureStatus=SimpleNamespace(cudaStreamCaptureStatusActive=ACTIVE),
        cudaStreamCaptureMode=SimpleNamespace(cudaStreamCaptureModeThreadLocal=1),
        cudaStreamIsCapturing=lambda stream: (OK, GIVEN_UP if "waits" in said else ACTIVE),
        cudaStreamEndCapture=stand_in("CUDA ends", ("error", None)),
        cudaStreamBeginCapture=stand_in("CUDA begins", (OK,)),
        cudaGetLastError=lambda: (OK,),
    )
    monkeypatch.setattr(graph_copies, "cudart", cudart)
    return said


def graph_of(calls: list[str]) -> Any:
    """A stand-in for a CUDA graph."""
    return SimpleNamespace(
        capture_begin=lambda pool, capture_error_mode: calls.append("begin"), capture_end=lambda: calls.append("end")
    )


def test_workspaces_of_pytorch_are_those_of_the_graph(calls: list[str]) -> None:
    with capture(graph_of(calls), (0, 1), STREAM, runs_torch=True):
        calls.append("runs")
    assert calls == ["clear", "begin", "runs", "end", "clear"]
    calls.clear()
    with capture(graph_of(calls), (0, 1), STREAM, runs_torch=False):
        calls.append("runs")
    assert calls == ["begin", "runs", "end"]


@pytest.mark.parametrize("said", ["waits", "fails"])
def test_torch_ends_an_empty_capture_in_the_place_of_one_that_failed(calls: list[str], said: str) -> None:
    """Also of one that CUDA gave up without an error."""
    graph, fails = graph_of(calls), pytest.raises(RuntimeError, match="waits" if said == "waits" else "its own")
    with fails, capture(graph, (0, 1), STREAM, runs_torch=False):
        calls.append(said)
        if said == "fails":
            raise RuntimeError("its own")
    assert calls == ["begin", said, "CUDA ends", "CUDA begins", "end"]
