"""Replace the memset nodes of a CUDA graph by kernels.

TensorRT-RTX clears counters before a product that several blocks share, and each clearing is a memset node. Memset
nodes make launches expensive: on an H200 ResNet-50's graph, of 65 kernels and 7 memsets, took the host 11.7 us, and 2.6
us with kernels in their place; ConvNeXt's, with 12 memsets, 18 and 4. The GPU is no slower.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from attrs import frozen

from pipeline.aten.types import Leaf
from pipeline.runtime import graph_copies
from pipeline.runtime.engine_buffers import memory_at
from pipeline.runtime.graph_copies import checked, nodes

log = logging.getLogger(__name__)

_DTYPES = {1: torch.int8, 2: torch.int16, 4: torch.int32}


@frozen
class Fill:
    """A memset: writes the number ``value`` to ``count`` elements of ``size`` bytes from ``address`` on."""

    address: int
    size: int
    count: int
    value: int

    def __call__(self, device: torch.device) -> None:
        """Write it on the current stream, with one PyTorch kernel."""
        memory = memory_at(self.address, self.count, _DTYPES[self.size], device)
        memory.fill_(int.from_bytes(self.value.to_bytes(4, "little")[: self.size], "little", signed=True))


def instantiate(graph: torch.cuda.CUDAGraph) -> None:
    """Make a captured graph (with ``keep_graph=True``) ready to be launched, with kernels in place of memsets."""
    whole = graph_copies.cudart.cudaGraph_t(graph.raw_cuda_graph())
    memsets = [(node, fill) for node in nodes(whole, "Memset") if (fill := _fill(node)) is not None]
    kernels = _kernels(dict.fromkeys(fill for _, fill in memsets))
    try:
        for node, fill in memsets:
            if fill in kernels:
                _replace(whole, node, kernels[fill])
    finally:
        for each in kernels.values():
            checked(graph_copies.cudart.cudaGraphDestroy(each))
    graph.instantiate()


def _kernels(fills: Iterable[Fill]) -> dict[Fill, object]:
    """A graph for each, as far as they can be captured."""
    kernels: dict[Fill, Any] = {}
    try:
        kernels.update(_captured(fills))
    except Exception as error:
        log.info("a CUDA graph keeps memsets, which make its launch slow: %s", error)
    return kernels


def _fill(node: object) -> Fill | None:
    """The fill of a memset node; None if it is not contiguous."""
    (form,) = checked(graph_copies.cudart.cudaGraphMemsetNodeGetParams(node))
    if form.height > 1:
        return None
    return Fill(int(form.dst), int(form.elementSize), int(form.width), int(form.value))


def _captured(fills: Iterable[Fill]) -> Iterable[tuple[Fill, object]]:
    """Each with a graph that does it."""
    for fill in fills:
        cudart, device = graph_copies.cudart, torch.device("cuda", torch.cuda.current_device())
        stream = graph_copies.capture_stream(device)
        mode = cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        with torch.cuda.stream(stream):
            checked(cudart.cudaStreamBeginCapture(stream.cuda_stream, mode))
            try:
                fill(device)
            finally:
                (made,) = checked(cudart.cudaStreamEndCapture(stream.cuda_stream))
        yield fill, made


def _replace(whole: object, node: object, kernel: object) -> None:
    """Replace a node by a graph."""
    cudart = graph_copies.cudart
    before = _neighbours(cudart.cudaGraphNodeGetDependencies, node)
    after = _neighbours(cudart.cudaGraphNodeGetDependentNodes, node)
    (new,) = checked(cudart.cudaGraphAddChildGraphNode(whole, before, len(before), kernel))
    if after:  # CUDA 12 has a name of its own for the form that also takes the kinds of edges: here ordinary ones
        order = getattr(cudart, "cudaGraphAddDependencies_v2", cudart.cudaGraphAddDependencies)
        checked(order(whole, [new] * len(after), after, None, len(after)))
    checked(cudart.cudaGraphDestroyNode(node))


def _neighbours(of: Any, node: Any) -> list[Leaf]:
    *_, count = checked(of(node))
    return list(checked(of(node, count))[0])[:count] if count else []
