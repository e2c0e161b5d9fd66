"""Replay a captured CUDA graph: choose the instance to launch, and the memory that it reads and writes.

Setting an address in a graph between launches costs the host 4 us. Callers usually drop a result when the next result
arrives, so that its memory is reused. With an instance for each of a few addresses, no address has to be set. Copies of
large outputs take the GPU long, so such a call is captured again to write directly to the reused memory.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from pipeline.aten.types import Leaf
from pipeline.runtime import graph_copies
from pipeline.runtime.engine_buffers import Allocator, has_plain_layout, tensor_allocator
from pipeline.runtime.graph_copies import CopyNode, GraphInstance, MemoryCopy, instantiate

log = logging.getLogger(__name__)

INSTANCES = 3
"""The maximum number of instances of a graph: three results exist at once (the caller's, the returned, the next)."""
CAPTURED = 8
"""The maximum number of addresses for which a call is captured; it exceeds `INSTANCES`, as captures cost more."""
AHEAD = 16 << 20
"""Outputs of up to this many bytes are allocated for the next call right after a launch."""
PATIENCE = 64
"""The number of calls between two captures, beyond the first few: a capture takes time, and more addresses may
alternate than there are captured calls."""


class GraphInput:
    """An input of a captured graph. The graph copies it from ``source``, or an address set for a launch, to ``held``,
    where its kernels read it. If ``has_copy`` is False, the graph has no such copy: ``source`` is ``held``."""

    def __init__(self, input_index: int, value: torch.Tensor, has_copy: bool) -> None:
        self.input_index = input_index
        self.held = torch.empty_like(value, memory_format=torch.contiguous_format)
        self.source = torch.empty_like(self.held) if has_copy else self.held
        self.held.copy_(value)
        self.source.copy_(value)

    def __call__(self, value: torch.Tensor, node: CopyNode | None) -> None:
        """Let the next launch read ``value`` as this input; ``node``: the graph's copy node for it, if it has one."""
        if node is not None and value.dtype == self.held.dtype and value.is_cuda and has_plain_layout(value):
            node.read_from(value.data_ptr())
            return
        self.source.copy_(value.detach())
        if node is not None:
            node.read_from(self.source.data_ptr())


class GraphOutput:
    """An output of a captured graph. The graph copies it from ``value``, where its kernels write it, to ``target``, or
    the address that a launch sets. If ``has_copy`` is False, the graph has no such copy: ``target`` is ``value``."""

    def __init__(self, value: torch.Tensor, has_copy: bool) -> None:
        self.value = value
        self.target = torch.empty_like(value, memory_format=torch.contiguous_format) if has_copy else value
        if has_copy:
            self.target.copy_(value)

    def make_allocator(self) -> Allocator:
        """Return a function that allocates tensors like ``target``. Free ``target``, which launches do not use."""
        like, self.target = self.target, self.value
        return tensor_allocator(tuple(like.shape), like.dtype, like.device, like.stride())


def input_and_output_copies(
    graph: torch.cuda.CUDAGraph, inputs: Sequence[GraphInput], outputs: Sequence[GraphOutput]
) -> tuple[list[MemoryCopy | None], list[MemoryCopy | None]]:
    """Return the graph's copy node for each input, and for each output; None where the graph has no such node."""
    known = graph_copies.copies_by_addresses(graph)
    reads = [known.get((feed.source.data_ptr(), feed.held.data_ptr())) for feed in inputs]
    return reads, [known.get((take.value.data_ptr(), take.target.data_ptr())) for take in outputs]


def make_instance(
    graph: torch.cuda.CUDAGraph, inputs: Sequence[GraphInput], outputs: Sequence[GraphOutput]
) -> GraphInstance:
    """Return PyTorch's own instance of a recaptured graph; it keeps the graph's memory of copied outputs alive. Other
    outputs are written directly to memory of the caller: launch it only while nothing else uses this memory."""
    kept = [take.value for take in outputs if take.value is not take.target]
    return GraphInstance(graph, *input_and_output_copies(graph, inputs, outputs), keep_alive=kept)


Recapture: TypeAlias = Callable[[Sequence[Leaf], Sequence[torch.Tensor | None]], GraphInstance]


NextLaunch: TypeAlias = tuple[GraphInstance, tuple[torch.Tensor | None, ...], int]
"""The instance to launch, the memory for each output that it copies, and the stream's handle."""


class Replayer:
    """Replay a captured graph.

    Args:
        graph: the captured graph, created with ``keep_graph=True`` if addresses of its copies can be set.
        inputs: the inputs that the graph copies. outputs: its outputs.
        random: whether the graph may generate random numbers, so that PyTorch must replay it to get new ones.
        recapture: returns a function that captures the call again, such that it writes large outputs directly to given
            memory. This is done for output addresses that occur again.
    """

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        inputs: Sequence[GraphInput],
        outputs: Sequence[GraphOutput],
        *,
        random: bool,
        recapture: Callable[[], Recapture | None] | None = None,
    ) -> None:
        self.graph, self.inputs, self.outputs, self.random = graph, inputs, outputs, random
        self._reads: list[MemoryCopy | None] = []
        self._writes: list[MemoryCopy | None] = [None] * len(outputs)
        self._own: GraphInstance | None = None
        self._instances: dict[tuple[int, ...], GraphInstance] = {}
        self._once = deque[tuple[int, ...]](maxlen=2 * CAPTURED)
        self._credit: float = CAPTURED * PATIENCE
        self._next: NextLaunch | None = None
        self._ahead = sum(take.value.nbytes for take in outputs) <= AHEAD
        if graph_copies.can_set_node_addresses():
            instantiate(graph)
            self._reads, self._writes = input_and_output_copies(graph, inputs, outputs)
            self._own = GraphInstance(graph, self._reads, self._writes)
        self._makers = [None if c is None else o.make_allocator() for c, o in zip(self._writes, outputs, strict=True)]
        self.complete = None not in self._writes
        """Whether the graph copies every output."""
        self._again = recapture if self.complete else None

    def __call__(self, leaves: Sequence[Leaf], stream: int) -> tuple[torch.Tensor | None, ...]:
        """Launch on the current stream, whose handle is ``stream``. Return each output that the graph copies out; None
        for an output that stays in graph memory."""
        if self._own is None:
            for feed in self.inputs:
                feed(leaves[feed.input_index], None)
            self.graph.replay()
            return (None,) * len(self.outputs)
        self._credit += 1
        now = self._next
        if now is None or now[2] != stream:
            now = self._next_launch(self._own, leaves, stream)
        instance, outputs, _ = now
        if self.inputs:
            for feed, node in zip(self.inputs, instance.reads, strict=True):
                feed(leaves[feed.input_index], node)
        if self.random:
            self.graph.replay()
        else:
            instance.launch(stream)
        if self._ahead:
            try:
                self._next = self._next_launch(self._own, leaves, stream)  # while the GPU is busy
            except torch.OutOfMemoryError:
                self._next = None  # the next call raises the error
        return outputs

    def _next_launch(self, base: GraphInstance, leaves: Sequence[object], stream: int) -> NextLaunch:
        """Prepare the next launch on this stream: allocate memory for the outputs, and choose the instance of the graph
        that writes there. ``base``: the instance that PyTorch's ``graph.replay()`` launches."""
        outputs = tuple([None if make is None else make() for make in self._makers])
        addresses = tuple([0 if value is None else value.data_ptr() for value in outputs])
        found = self._instances.get(addresses)
        if found is None:
            found = self._instance_for_new_addresses(base, leaves, outputs, addresses)
            found.write_outputs_to(addresses)
        return found, outputs, stream

    def _instance_for_new_addresses(
        self,
        base: GraphInstance,
        leaves: Sequence[object],
        outputs: Sequence[torch.Tensor | None],
        addresses: tuple[int, ...],
    ) -> GraphInstance:
        """Return an instance of the graph for outputs at addresses for which there is none. If they have occurred
        before, it may be a new capture that writes to ``outputs`` directly. Else it is ``base``, a new or the oldest
        instance, in whose copy nodes the caller must set the addresses."""
        again = self._again() if self._again is not None else None
        if again is not None and self._credit >= PATIENCE and addresses in self._once:
            self._credit -= PATIENCE
            try:
                return self._remember(again(leaves, outputs), addresses, CAPTURED)
            except Exception as error:
                log.warning("capturing a CUDA graph for reused memory failed, so calls copy their outputs: %s", error)
                self._credit = -math.inf  # captured instances stay valid for their addresses; no more are captured
        self._once.append(addresses)
        if self.random or self._again is not None:
            return base
        if len(self._instances) >= INSTANCES:
            return self._remember(self._instances[next(iter(self._instances))], addresses)
        first = base not in self._instances.values()
        found = base if first else GraphInstance(self.graph, self._reads, self._writes, another=True)
        return self._remember(found, addresses)

    def _remember(self, instance: GraphInstance, addresses: tuple[int, ...], limit: int = INSTANCES) -> GraphInstance:
        """Store an instance of the graph by the addresses of its outputs, and return it; keep at most ``limit``."""
        while len(self._instances) >= limit:
            self._instances.pop(next(iter(self._instances)))
        self._instances[addresses] = instance
        return instance
