"""Memsets in CUDA graphs become kernels that write the same."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from examples.models import full
from pipeline.runtime import graph_copies
from pipeline.runtime.graph_copies import check_cuda, instantiate, nodes_of_kind
from tests.gpu.test_runtime_gpu import compiled, worker

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not graph_copies.can_set_node_addresses(), reason="needs cuda.bindings"),
]


def memsets(graph: torch.cuda.CUDAGraph) -> list[Any]:
    return nodes_of_kind(graph_copies.cudart.cudaGraph_t(graph.raw_cuda_graph()), "Memset")


@pytest.mark.parametrize("size", [1, 2, 4])
def test_memory_is_what_a_memset_makes_it(size: int) -> None:
    """In order: what was there is read before, what is written is read after, at every launch."""
    from cuda.bindings import driver

    fill = {1: driver.cuMemsetD8Async, 2: driver.cuMemsetD16Async, 4: driver.cuMemsetD32Async}[size]
    value = 0xFEDCBA98 % (1 << 8 * size)
    memory = torch.zeros(1000, dtype=torch.uint8, device="cuda")
    before, after = torch.empty_like(memory), torch.empty_like(memory)
    graph, stream = torch.cuda.CUDAGraph(keep_graph=True), graph_copies.capture_stream(memory.device)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        before.copy_(memory)
        memory.add_(3)
        check_cuda(fill(memory.data_ptr() + 8 * size, value, 100, stream.cuda_stream))
        after.copy_(memory)
        check_cuda(fill(memory.data_ptr() + 8 * size, 1, 7, stream.cuda_stream))
    assert len(memsets(graph)) == 2
    instantiate(graph)
    assert memsets(graph) == []
    for launched in range(3):
        graph.replay()
        torch.cuda.synchronize()
        first, last = 8 * size, 108 * size
        assert bytes(after[first:last].tolist()) == value.to_bytes(size, "little") * 100
        assert set(after[:first].tolist() + after[last:].tolist()) == {3 * launched + 3}
        assert bytes(memory[first : 15 * size].tolist()) == (1).to_bytes(size, "little") * 7
        assert torch.equal(memory[15 * size :], after[15 * size :])
        assert set(before[:first].tolist()) == {3 * launched}


def test_a_model_with_counters_to_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """ResNet-50 at batch 1: counters are cleared before convolutions that several blocks work on."""
    replaced, replace = [], graph_copies._replace_node
    monkeypatch.setattr(graph_copies, "_replace_node", lambda *args: (replaced.append(args), replace(*args)))
    case = full("resnet50", torch.float16)
    inputs = [value.cuda() for value in case.inputs(batch=1).values()]
    program = compiled(case.model.cuda(), *inputs)
    run, plain = program.module(cuda_graphs=True), program.module()
    [wanted] = tree_leaves(plain(*inputs))
    time.sleep(2)  # kernels that TensorRT-RTX compiles meanwhile for the shapes at hand
    for i in range(20):
        [result] = tree_leaves(run(*inputs))
        assert torch.allclose(result, wanted, rtol=0, atol=2e-2 * float(wanted.abs().max())), i
    graphs = worker(run).graphs
    assert graphs is not None
    [kept] = graphs.kept.values()
    assert replaced and memsets(kept.graph) == []
