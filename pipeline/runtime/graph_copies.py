"""Change the nodes of captured CUDA graphs: set the addresses of copies at each call, and replace memsets by kernels.

A copy outside of the graph costs a launch: for ResNet-50 on an H200 two copies cost the host 17 us, but setting the
addresses in the graph costs 4 us. This needs ``cuda.bindings``, which PyTorch's CUDA packages include.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from attrs import frozen

from pipeline.runtime.engine_buffers import tensor_at_address

try:
    from cuda.bindings import runtime
except ImportError:
    runtime = None
cudart: Any = runtime
log = logging.getLogger(__name__)

_DTYPES = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def can_set_node_addresses() -> bool:
    """Return whether this installation can set the addresses of nodes in a CUDA graph."""
    return cudart is not None and hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph_exec")


@cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a stream reserved for captures, one at a time. PyTorch takes streams from a pool: if another thread used
    the same stream, its work would be captured or break the capture."""
    if cudart is None:
        return torch.cuda.Stream(device, priority=-1)
    with torch.cuda.device(device):
        (stream,) = check_cuda(cudart.cudaStreamCreateWithFlags(cudart.cudaStreamNonBlocking))
    return torch.cuda.ExternalStream(int(stream), device)


@frozen
class MemoryCopy:
    """A node of a graph that copies contiguous bytes."""

    node: Any
    source: int
    target: int
    nbytes: int


def copies_by_addresses(graph: torch.cuda.CUDAGraph) -> dict[tuple[int, int], MemoryCopy]:
    """Return the copy nodes of a graph (created with ``keep_graph=True``), by source and target address."""
    found = {}
    for node in nodes_of_kind(cudart.cudaGraph_t(graph.raw_cuda_graph()), "Memcpy"):
        (form,) = check_cuda(cudart.cudaGraphMemcpyNodeGetParams(node))
        source, target = int(form.srcPtr.ptr), int(form.dstPtr.ptr)
        found[source, target] = MemoryCopy(node, source, target, int(form.extent.width))
    return found


def nodes_of_kind(graph: object, node_kind: str) -> list[Any]:
    """Return a CUDA graph's nodes of one kind, such as ``Memset``."""
    _, count = check_cuda(cudart.cudaGraphGetNodes(graph))
    every, _ = check_cuda(cudart.cudaGraphGetNodes(graph, count))
    wanted = getattr(cudart.cudaGraphNodeType, f"cudaGraphNodeType{node_kind}")
    return [node for node in every if check_cuda(cudart.cudaGraphNodeGetType(node)) == (wanted,)]


class CopyNode:
    """A copy node in an executable instance of a CUDA graph."""

    def __init__(self, executable: object, copy: MemoryCopy) -> None:
        self._executable, self._node, self._nbytes = executable, copy.node, copy.nbytes
        self._source, self._target = copy.source, copy.target
        self._kind = cudart.cudaMemcpyKind.cudaMemcpyDeviceToDevice

    def read_from(self, address: int) -> None:
        """Set the address that the node copies from in all later launches."""
        if address != self._source:
            self._set_addresses(address, self._target)

    def write_to(self, address: int) -> None:
        """Set the address that the node copies to in all later launches."""
        if address != self._target:
            self._set_addresses(self._source, address)

    def _set_addresses(self, source: int, target: int) -> None:
        (error,) = cudart.cudaGraphExecMemcpyNodeSetParams1D(
            self._executable, self._node, target, source, self._nbytes, self._kind
        )
        if error:
            check_cuda((error,))
        self._source, self._target = source, target


class GraphInstance:
    """An executable instance of a captured graph. `write_outputs_to` and ``reads`` set the addresses that its copy
    nodes use in all later launches.

    Args:
        graph: the captured graph, instantiated once.
        reads: the graph node that copies each input; None for an input that is not copied.
        writes: the graph node that copies each output; None for an output that is not copied.
        another: instantiate the graph once more; False: use the instance that ``graph.replay()`` launches.
        keep_alive: objects that must live as long as this instance.
    """

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        reads: Sequence[MemoryCopy | None],
        writes: Sequence[MemoryCopy | None],
        *,
        another: bool = False,
        keep_alive: object = None,
    ) -> None:
        if another:
            (executable,) = check_cuda(cudart.cudaGraphInstantiate(cudart.cudaGraph_t(graph.raw_cuda_graph()), 0))
            weakref.finalize(self, cudart.cudaGraphExecDestroy, executable)
        else:
            executable = cudart.cudaGraphExec_t(graph.raw_cuda_graph_exec())
        self._executable, self._kept = executable, (graph, keep_alive)
        self.reads = [None if copy is None else CopyNode(executable, copy) for copy in reads]
        self._writes = [None if copy is None else CopyNode(executable, copy) for copy in writes]

    def write_outputs_to(self, addresses: Sequence[int]) -> None:
        """Set the addresses to which the graph's copied outputs are written."""
        for node, address in zip(self._writes, addresses, strict=True):
            if node is not None:
                node.write_to(address)

    def launch(self, stream_handle: int) -> None:
        """Launch the graph on a stream. If it draws random numbers, call ``graph.replay()`` instead, or they repeat."""
        (error,) = cudart.cudaGraphLaunch(self._executable, stream_handle)
        if error:
            check_cuda((error,))


def check_cuda(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the results of a CUDA call without their status; raise an error if the status is not success."""
    error, *values = result
    if error != cudart.cudaError_t.cudaSuccess:
        raise RuntimeError(f"a CUDA runtime call for a CUDA graph failed: {error.name}")
    return tuple(values)


@frozen
class MemoryFill:
    """A memset node: it writes ``value`` to ``count`` elements of ``size`` bytes, starting at ``address``."""

    address: int
    size: int
    count: int
    value: int

    def __call__(self, device: torch.device) -> None:
        """Fill the memory by a PyTorch kernel on the current stream: `instantiate` puts it in place of the node."""
        memory = tensor_at_address(self.address, self.count, _DTYPES[self.size], device)
        memory.fill_(int.from_bytes(self.value.to_bytes(4, "little")[: self.size], "little", signed=True))


def instantiate(graph: torch.cuda.CUDAGraph) -> None:
    """Instantiate a captured graph (created with ``keep_graph=True``), with kernels in place of memset nodes.

    TensorRT-RTX clears counters before each split-k matmul with a memset node, and memset nodes make launches
    expensive. On an H200 ResNet-50's graph (65 kernels, 7 memsets) took the host 11.7 us to launch, and 2.6 us with
    kernels instead of memsets. The GPU is no slower.
    """
    raw = cudart.cudaGraph_t(graph.raw_cuda_graph())
    memsets = [(node, fill) for node in nodes_of_kind(raw, "Memset") if (fill := _read_fill(node)) is not None]
    kernels: dict[MemoryFill, object] = {}
    try:
        for fill in dict.fromkeys(fill for _, fill in memsets):
            kernels[fill] = _graph_of_fill(fill)
    except Exception as error:
        log.info("a CUDA graph keeps memsets, which make its launch slow: %s", error)
    try:
        for node, fill in memsets:
            if fill in kernels:
                _replace_node(raw, node, kernels[fill])
    finally:
        for kernel in kernels.values():
            check_cuda(cudart.cudaGraphDestroy(kernel))
    graph.instantiate()


def _read_fill(node: object) -> MemoryFill | None:
    """Return the fill that a memset node performs; None if its memory is not contiguous."""
    (form,) = check_cuda(cudart.cudaGraphMemsetNodeGetParams(node))
    if form.height > 1:
        return None
    return MemoryFill(int(form.dst), int(form.elementSize), int(form.width), int(form.value))


def _graph_of_fill(fill: MemoryFill) -> object:
    """Return a new CUDA graph, whose only node is the kernel that fills memory as ``fill`` does."""
    device = torch.device("cuda", torch.cuda.current_device())
    stream = capture_stream(device)
    mode = cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    with torch.cuda.stream(stream):
        check_cuda(cudart.cudaStreamBeginCapture(stream.cuda_stream, mode))
        try:
            fill(device)
        finally:
            (graph,) = check_cuda(cudart.cudaStreamEndCapture(stream.cuda_stream))
    return graph


def _replace_node(graph: object, node: object, kernel: object) -> None:
    before = _adjacent_nodes(cudart.cudaGraphNodeGetDependencies, node)
    after = _adjacent_nodes(cudart.cudaGraphNodeGetDependentNodes, node)
    (new,) = check_cuda(cudart.cudaGraphAddChildGraphNode(graph, before, len(before), kernel))
    if after:  # CUDA 12 names the form with edge data (here None) _v2
        order = getattr(cudart, "cudaGraphAddDependencies_v2", cudart.cudaGraphAddDependencies)
        check_cuda(order(graph, [new] * len(after), after, None, len(after)))
    check_cuda(cudart.cudaGraphDestroyNode(node))


def _adjacent_nodes(query: Any, node: Any) -> list[Any]:
    """Return the nodes before or after a graph node; ``query`` is the CUDA function that lists them."""
    *_, count = check_cuda(query(node))
    return list(check_cuda(query(node, count))[0])[:count] if count else []
