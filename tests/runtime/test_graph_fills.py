"""Memsets of a CUDA graph become kernels: on a fake CUDA that keeps nodes and edges, and fills memory of the CPU."""

from __future__ import annotations

import contextlib
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.runtime import graph_copies
from pipeline.runtime.graph_copies import MemoryFill


@given(st.sampled_from([1, 2, 4]), st.integers(0, 2**32 - 1), st.integers(1, 7), st.integers(0, 3))
def test_a_fill_writes_what_a_memset_would(size: int, value: int, count: int, start: int) -> None:
    memory = torch.full((64,), 77, dtype=torch.uint8)
    MemoryFill(memory.data_ptr() + start * size, size, count, value)(torch.device("cpu"))
    written = bytes(memory[start * size : (start + count) * size].tolist())
    assert written == value.to_bytes(4, "little")[:size] * count
    assert set(memory[: start * size].tolist() + memory[(start + count) * size :].tolist()) == {77}


class FakeCuda:
    """A graph of named nodes and the edges between them, and ``cudart``, what CUDA has to change it."""

    def __init__(self, nodes: dict[str, Any], edges: set[tuple[str, str]]) -> None:
        self.nodes, self.edges = nodes, edges
        self.numbers = itertools.count()
        self.graphs: set[str] = set()
        self.cudart = SimpleNamespace(
            cudaError_t=SimpleNamespace(cudaSuccess=0),
            cudaGraphNodeType=SimpleNamespace(cudaGraphNodeTypeMemset="memset"),
            cudaStreamCaptureMode=SimpleNamespace(cudaStreamCaptureModeThreadLocal=1),
            cudaGraph_t=lambda handle: handle,
            cudaGraphGetNodes=lambda whole, count=0: (0, list(self.nodes), len(self.nodes)),
            cudaGraphNodeGetType=lambda node: (0, "memset" if node.startswith("memset") else "kernel"),
            cudaGraphMemsetNodeGetParams=lambda node: (0, self.nodes[node]),
            cudaGraphNodeGetDependencies=lambda node, count=0: self.neighbours(1, 0, node, count),
            cudaGraphNodeGetDependentNodes=lambda node, count=0: self.neighbours(0, 1, node, count),
            cudaGraphAddChildGraphNode=self.add,
            cudaGraphAddDependencies=self.order,
            cudaGraphDestroyNode=self.destroy,
            cudaGraphDestroy=lambda graph: (self.graphs.remove(graph) or 0,),
            cudaStreamBeginCapture=lambda stream, mode: (0,),
            cudaStreamEndCapture=self.captured,
        )

    def neighbours(self, at: int, other: int, node: str, count: int) -> Any:
        found = sorted(edge[other] for edge in self.edges if edge[at] == node)
        return 0, found if count else [], [], len(found)

    def captured(self, stream: int) -> Any:
        self.graphs.add(f"graph {len(self.graphs)}")
        return 0, f"graph {len(self.graphs) - 1}"

    def add(self, whole: str, before: list[str], count: int, child: str) -> Any:
        assert len(before) == count and child in self.graphs
        name = f"kernel {next(self.numbers)}"
        self.nodes[name] = child
        self.edges |= {(node, name) for node in before}
        return 0, name

    def order(self, whole: str, before: list[str], after: list[str], kinds: None, count: int) -> Any:
        assert len(before) == len(after) == count
        self.edges |= set(zip(before, after, strict=True))
        return (0,)

    def destroy(self, node: str) -> Any:
        del self.nodes[node]
        self.edges = {edge for edge in self.edges if node not in edge}
        return (0,)


def memset(address: int, **other: int) -> Any:
    return SimpleNamespace(**{"dst": address, "elementSize": 1, "width": 8, "height": 1, "value": 0, **other})


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(graph_copies, "capture_stream", lambda device: SimpleNamespace(cuda_stream=7))
    fill = MemoryFill.__call__
    monkeypatch.setattr(MemoryFill, "__call__", lambda self, device: fill(self, torch.device("cpu")))
    return torch.full((16,), 77, dtype=torch.uint8)


def instantiated(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened to PyTorch's handle of the graph."""
    monkeypatch.setattr(graph_copies, "cudart", cuda.cudart)
    happened: list[str] = []
    graph: Any = SimpleNamespace(raw_cuda_graph=lambda: "whole", instantiate=lambda: happened.append("instantiated"))
    graph_copies.instantiate(graph)
    return happened


def test_a_kernel_takes_the_edges_of_a_memset(memory: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    at = memory.data_ptr()
    memsets = {"memset 1": memset(at), "memset 2": memset(at), "memset 3": memset(at + 8)}
    nodes = {"a": None, "b": None, "c": None, **memsets}
    edges = {("a", "memset 1"), ("memset 1", "b"), ("memset 1", "c"), ("b", "memset 2"), ("a", "b")}
    cuda = FakeCuda(nodes, edges)
    assert instantiated(cuda, monkeypatch) == ["instantiated"]
    assert memory.tolist() == [0] * 16
    first, second, third = [node for node in cuda.nodes if node.startswith("kernel")]
    assert cuda.nodes[first] == cuda.nodes[second] != cuda.nodes[third]
    assert list(cuda.nodes) == ["a", "b", "c", first, second, third]
    assert cuda.edges == {("a", first), (first, "b"), (first, "c"), ("b", second), ("a", "b")}
    assert not cuda.graphs


def test_a_memset_of_rows_stays(memory: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {"memset rows": memset(memory.data_ptr(), height=2, width=4), "memset": memset(memory.data_ptr())}
    cuda = FakeCuda(nodes, {("memset rows", "memset")})
    instantiated(cuda, monkeypatch)
    assert [node.startswith("kernel") for node in cuda.nodes] == [False, True]
    assert cuda.edges == {tuple(cuda.nodes)}


def test_memsets_stay_where_no_kernel_can_be_made(
    memory: torch.Tensor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: MemoryFill, device: torch.device) -> None:
        raise RuntimeError("no such memory")

    monkeypatch.setattr(MemoryFill, "__call__", refuse)
    cuda = FakeCuda({"memset": memset(memory.data_ptr())}, set())
    with caplog.at_level("INFO"):
        assert instantiated(cuda, monkeypatch) == ["instantiated"]
    assert list(cuda.nodes) == ["memset"]
    assert "keeps memsets, which make its launch slow: no such memory" in caplog.text


def test_what_cuda_refuses_is_an_error(memory: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda({"memset": memset(memory.data_ptr())}, set())
    cuda.cudart.cudaGraphDestroyNode = lambda node: (SimpleNamespace(name="cudaErrorInvalidValue"),)
    with pytest.raises(RuntimeError, match="cudaErrorInvalidValue"):
        instantiated(cuda, monkeypatch)
    assert not cuda.graphs
