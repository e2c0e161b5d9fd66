"""Captures of CUDA graphs: one that fails leaves torch as it was, and a graph writes to its own memory alone."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from torch import nn

import pipeline
from pipeline.runtime.capture import capture
from pipeline.runtime.graph_copies import capture_stream

pytestmark = pytest.mark.gpu
SIZE, TIMES = 64 << 20, 20


def stream() -> torch.cuda.Stream:
    return capture_stream(torch.device("cuda", torch.cuda.current_device()))


def failed(x: torch.Tensor, pool: object) -> None:
    """Fail to capture a call that waits for the GPU."""
    current = torch.cuda.current_stream()
    with pytest.raises(RuntimeError, match="captur"), capture(torch.cuda.CUDAGraph(), pool, stream(), runs_torch=True):
        float((x + torch.rand_like(x)).sum())
    assert torch.cuda.current_stream() == current


def test_memory_that_two_streams_used_is_free_after_a_failed_capture() -> None:
    failed(torch.ones(1 << 20, device="cuda"), torch.cuda.graph_pool_handle())
    before, other = torch.cuda.memory_reserved(), torch.cuda.Stream()
    for _ in range(TIMES):
        memory = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
        memory.record_stream(other)
        del memory
        torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() - before <= 2 * SIZE


def test_graphs_are_captured_and_random_numbers_drawn_after_one_that_failed() -> None:
    pool, x = torch.cuda.graph_pool_handle(), torch.ones(1 << 10, device="cuda")
    graphs = []
    for _ in range(3):
        graphs.append(torch.cuda.CUDAGraph())
        with capture(graphs[-1], pool, stream(), runs_torch=True):
            y = x + torch.rand_like(x)
        failed(x, pool)
        assert torch.randn(4, device="cuda").isfinite().all()
        graphs[-1].replay()
        assert float(y.sum()) > 1 << 10
    first = y.clone()
    graphs[-1].replay()
    assert not torch.equal(first, y), "each replay draws other numbers"


def test_a_call_that_waits_is_refused_without_an_error_of_its_own() -> None:
    def call(x: torch.Tensor) -> None:
        with suppress(RuntimeError):
            float(x.sum())

    x = torch.ones(1 << 10, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(RuntimeError, match="waits for the GPU"),
        capture(graph, torch.cuda.graph_pool_handle(), stream(), runs_torch=True),
    ):
        call(x)
    failed(x, torch.cuda.graph_pool_handle())


def test_a_replay_writes_to_its_own_memory_where_torch_frees_workspaces() -> None:
    """As `torch.compile` does before it captures a graph."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4096, 512), nn.GELU(), nn.Linear(512, 64)).cuda().half().eval()
    x = torch.randn(1, 4096, device="cuda").half()
    compile = pipeline.default(torch_executed_ops={"aten.linear.default"}, min_block_size=1)
    module = compile(model, (x,)).module(cuda_graphs=True)
    with torch.no_grad():
        expected = model(x)
        for _ in range(4):
            found = module(x)
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        memory = [torch.full((8 << 20,), 7, dtype=torch.uint8, device="cuda") for _ in range(16)]
        for _ in range(4):
            found = module(x)
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
        assert all(bool((each == 7).all()) for each in memory)
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        del memory
        torch.cuda.empty_cache()
        torch.testing.assert_close(module(x), expected, rtol=1e-2, atol=1e-2)
        torch.cuda.synchronize()
