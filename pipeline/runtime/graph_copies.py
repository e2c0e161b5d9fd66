"""The copies in and out of a CUDA graph as its own nodes, told at each call where to read and write.

A copy beside the graph costs a launch of its own: two of them 17 us of the host for ResNet-50 on an H200, against 3 us
for telling the graph (docs/benchmarks.md). It takes ``cuda.bindings``, which PyTorch's CUDA packages bring along.
"""

from __future__ import annotations

from typing import Any

import torch

try:
    from cuda.bindings import runtime as cudart
except ImportError:
    cudart = None


def available() -> bool:
    """Whether a graph's nodes can be told other addresses here."""
    return cudart is not None and hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph_exec")


class CopyNode:
    """A copy of contiguous bytes inside an instantiated graph."""

    def __init__(self, executable: Any, node: Any, source: int, target: int, nbytes: int) -> None:
        self._executable, self._node, self._nbytes = executable, node, nbytes
        self._source, self._target = source, target
        self._kind = cudart.cudaMemcpyKind.cudaMemcpyDeviceToDevice

    def read_from(self, address: int) -> None:
        """From the next replay on."""
        if address != self._source:
            self._tell(address, self._target)

    def write_to(self, address: int) -> None:
        """From the next replay on."""
        if address != self._target:
            self._tell(self._source, address)

    def _tell(self, source: int, target: int) -> None:
        (error,) = cudart.cudaGraphExecMemcpyNodeSetParams1D(
            self._executable, self._node, target, source, self._nbytes, self._kind
        )
        if error:
            _checked((error,))
        self._source, self._target = source, target


def copy_nodes(graph: torch.cuda.CUDAGraph) -> dict[tuple[int, int], CopyNode]:
    """The copies of a graph (made with ``keep_graph=True`` and instantiated) by source and target address."""
    whole = cudart.cudaGraph_t(graph.raw_cuda_graph())
    executable = cudart.cudaGraphExec_t(graph.raw_cuda_graph_exec())
    _, count = _checked(cudart.cudaGraphGetNodes(whole))
    nodes, _ = _checked(cudart.cudaGraphGetNodes(whole, count))
    found = {}
    for node in nodes:
        (kind,) = _checked(cudart.cudaGraphNodeGetType(node))
        if kind == cudart.cudaGraphNodeType.cudaGraphNodeTypeMemcpy:
            (form,) = _checked(cudart.cudaGraphMemcpyNodeGetParams(node))
            source, target = int(form.srcPtr.ptr), int(form.dstPtr.ptr)
            found[source, target] = CopyNode(executable, node, source, target, int(form.extent.width))
    return found


def _checked(result: tuple[Any, ...]) -> tuple[Any, ...]:
    error, *values = result
    if error != cudart.cudaError_t.cudaSuccess:
        raise RuntimeError(f"CUDA refused to look into a graph: {error.name}")
    return tuple(values)
