"""Copy nodes of a CUDA graph, whose addresses are set at each call.

A copy outside the graph costs a launch of its own: two of them take the host 17 us for ResNet-50 on an H200, against 4
us for setting addresses in the graph. This needs ``cuda.bindings``, which PyTorch's CUDA packages include.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from attrs import frozen

from pipeline.aten.types import Leaf

try:
    from cuda.bindings import runtime
except ImportError:
    runtime = None
cudart: Any = runtime


def available() -> bool:
    """Whether addresses of a graph's nodes can be set here."""
    return cudart is not None and hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph_exec")


@cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream for captures only, one at a time: PyTorch's streams come from a pool, so work of another thread on the
    same one would be captured, or break the capture."""
    if cudart is None:
        return torch.cuda.Stream(device, priority=-1)
    with torch.cuda.device(device):
        (made,) = checked(cudart.cudaStreamCreateWithFlags(cudart.cudaStreamNonBlocking))
    return torch.cuda.ExternalStream(int(made), device)


@frozen
class Copy:
    """A copy of contiguous bytes among the nodes of a graph."""

    node: Any
    source: int
    target: int
    nbytes: int


def copies(graph: torch.cuda.CUDAGraph) -> dict[tuple[int, int], Copy]:
    """The copies of a graph (made with ``keep_graph=True``) by source and target address."""
    found = {}
    for node in nodes(cudart.cudaGraph_t(graph.raw_cuda_graph()), "Memcpy"):
        (form,) = checked(cudart.cudaGraphMemcpyNodeGetParams(node))
        source, target = int(form.srcPtr.ptr), int(form.dstPtr.ptr)
        found[source, target] = Copy(node, source, target, int(form.extent.width))
    return found


def nodes(whole: object, kind: str) -> list[Leaf]:
    """The nodes of a kind, such as ``Memset``, in a graph of CUDA's."""
    _, count = checked(cudart.cudaGraphGetNodes(whole))
    every, _ = checked(cudart.cudaGraphGetNodes(whole, count))
    wanted = getattr(cudart.cudaGraphNodeType, f"cudaGraphNodeType{kind}")
    return [node for node in every if checked(cudart.cudaGraphNodeGetType(node)) == (wanted,)]


class CopyNode:
    """A copy inside an instance of a graph."""

    def __init__(self, executable: object, copy: Copy) -> None:
        self._executable, self._node, self._nbytes = executable, copy.node, copy.nbytes
        self._source, self._target = copy.source, copy.target
        self._kind = cudart.cudaMemcpyKind.cudaMemcpyDeviceToDevice

    def read_from(self, address: int) -> None:
        """Set the source address, from the next launch on."""
        if address != self._source:
            self._tell(address, self._target)

    def write_to(self, address: int) -> None:
        """Set the target address, from the next launch on."""
        if address != self._target:
            self._tell(self._source, address)

    def _tell(self, source: int, target: int) -> None:
        (error,) = cudart.cudaGraphExecMemcpyNodeSetParams1D(
            self._executable, self._node, target, source, self._nbytes, self._kind
        )
        if error:
            checked((error,))
        self._source, self._target = source, target


class Instance:
    """A graph ready to be launched, whose copies use the addresses set last.

    Args:
        graph: the captured graph, instantiated once.
        reads: its copies of inputs; None for inputs copied in another way.
        writes: its copies of outputs, likewise.
        another: make a new instance, not the one that PyTorch made and replays.
        kept: objects that must live as long.
    """

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        reads: Sequence[Copy | None],
        writes: Sequence[Copy | None],
        *,
        another: bool = False,
        kept: object = None,
    ) -> None:
        if another:
            (executable,) = checked(cudart.cudaGraphInstantiate(cudart.cudaGraph_t(graph.raw_cuda_graph()), 0))
            weakref.finalize(self, cudart.cudaGraphExecDestroy, executable)
        else:
            executable = cudart.cudaGraphExec_t(graph.raw_cuda_graph_exec())
        self._executable, self._kept = executable, (graph, kept)
        self.reads = [None if copy is None else CopyNode(executable, copy) for copy in reads]
        self._writes = [None if copy is None else CopyNode(executable, copy) for copy in writes]

    def write_to(self, addresses: Sequence[int]) -> None:
        """Set the address of each output that the graph copies."""
        for node, address in zip(self._writes, addresses, strict=True):
            if node is not None:
                node.write_to(address)

    def launch(self, stream: int) -> None:
        """Launch on the stream of this handle; a replay by PyTorch would also draw new random numbers."""
        (error,) = cudart.cudaGraphLaunch(self._executable, stream)
        if error:
            checked((error,))


def checked(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the results of a CUDA call, and raise its error."""
    error, *values = result
    if error != cudart.cudaError_t.cudaSuccess:
        raise RuntimeError(f"CUDA refused what was asked of it for a graph: {error.name}")
    return tuple(values)
