"""A CUDA graph that cannot be captured leaves torch's allocator as it was."""

from __future__ import annotations

import pytest
import torch

from pipeline.runtime.failed_capture import ended_if_it_fails

pytestmark = pytest.mark.gpu
SIZE, TIMES = 64 << 20, 20


def test_memory_that_two_streams_used_is_free_after_a_failed_capture() -> None:
    pool, x, stream = torch.cuda.graph_pool_handle(), torch.ones(1 << 20, device="cuda"), torch.cuda.current_stream()
    fails = pytest.raises(RuntimeError, match="captur")
    with fails, ended_if_it_fails(pool), torch.cuda.graph(torch.cuda.CUDAGraph(), pool=pool):
        float((x + 1).sum())
    assert torch.cuda.current_stream() == stream
    before, other = torch.cuda.memory_reserved(), torch.cuda.Stream()
    for _ in range(TIMES):
        memory = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
        memory.record_stream(other)
        del memory
        torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() - before <= 2 * SIZE


def test_graphs_are_captured_in_the_pool_of_one_that_failed() -> None:
    pool, x = torch.cuda.graph_pool_handle(), torch.ones(1 << 10, device="cuda")
    for fails in (True, False, True, False):
        graph = torch.cuda.CUDAGraph()
        try:
            with ended_if_it_fails(pool), torch.cuda.graph(graph, pool=pool):
                y = x + 1
                if fails:
                    float(y.sum())
        except RuntimeError:
            assert fails
        else:
            graph.replay()
            assert not fails and float(y.sum()) == 2 << 10
