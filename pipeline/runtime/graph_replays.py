"""Replays of a captured CUDA graph: which inputs it reads, which memory it writes to, which instance of it is launched.

A graph is told an address between launches, which costs the host 4 us. Callers most often drop each result when the
next one comes, so that their memory returns: an instance for each of a few addresses never needs to be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from pipeline.runtime import graph_copies
from pipeline.runtime.engine_buffers import plain
from pipeline.runtime.graph_copies import Copy, CopyNode, Instance

INSTANCES = 3
"""Of three results in turn one is the caller's, one is returned, and one waits for the next call."""


class Feed:
    """An input, and the graph's copy of it, which it makes from ``example`` or from where it is told to."""

    def __init__(self, given: int, value: torch.Tensor, inside: bool) -> None:
        self.given = given
        self.held = torch.empty_like(value, memory_format=torch.contiguous_format)
        self.example = torch.empty_like(self.held) if inside else self.held

    def __call__(self, value: torch.Tensor, node: CopyNode | None) -> None:
        """Let the next launch see an input; ``node`` is the graph's own copy of it."""
        if node is not None and value.dtype == self.held.dtype and value.is_cuda and plain(value):
            node.read_from(value.data_ptr())
            return
        self.example.copy_(value.detach())
        if node is not None:
            node.read_from(self.example.data_ptr())


class Take:
    """An output in the graph's memory, and what the graph copies it to: memory like that which the caller is given."""

    def __init__(self, value: torch.Tensor, inside: bool) -> None:
        self.value = value
        self.example = torch.empty_like(value, memory_format=torch.contiguous_format) if inside else value
        if inside:
            self.example.copy_(value)


class Next(NamedTuple):
    """An instance that will be launched on a stream, and the memory that it writes outputs to, if it does."""

    instance: Instance
    made: tuple[torch.Tensor | None, ...]
    stream: int


class Replays:
    """A graph captured with these copies of inputs and outputs.

    Args:
        graph: made with ``keep_graph=True`` if its copies can be told.
        feeds: the inputs that it copies.
        takes: its outputs.
        random: it may draw random numbers, which only PyTorch's own replays do anew.
    """

    def __init__(
        self, graph: torch.cuda.CUDAGraph, feeds: Sequence[Feed], takes: Sequence[Take], *, random: bool
    ) -> None:
        self.graph, self.feeds, self.takes, self.random = graph, feeds, takes, random
        self._reads: list[Copy | None] = []
        self._writes: list[Copy | None] = [None] * len(takes)
        self._instances: dict[tuple[int, ...], Instance] = {}
        self._next: Next | None = None
        if graph_copies.available():
            graph.instantiate()
            known = graph_copies.copies(graph)
            self._reads = [known.get((feed.example.data_ptr(), feed.held.data_ptr())) for feed in feeds]
            self._writes = [known.get((take.value.data_ptr(), take.example.data_ptr())) for take in takes]
            self._instances[()] = Instance(graph, self._reads, self._writes)
        self._likes = [None if c is None else t.example for c, t in zip(self._writes, takes, strict=True)]
        self.complete = None not in self._writes
        """Whether the graph copies every output."""

    def __call__(self, leaves: Sequence[Any], stream: int) -> tuple[torch.Tensor | None, ...]:
        """Launch on the current stream, whose handle is given. Gives each output that the graph copied for the caller;
        None for those that are only in its own memory."""
        if not self._instances:
            for feed in self.feeds:
                feed(leaves[feed.given], None)
            self.graph.replay()
            return (None,) * len(self.takes)
        now = self._next
        if now is None or now.stream != stream:
            now = self._following(stream)
        instance = now.instance
        for feed, node in zip(self.feeds, instance.reads, strict=True):
            feed(leaves[feed.given], node)
        if self.random:
            self.graph.replay()
        else:
            instance.launch(stream)
        try:
            self._next = self._following(stream)  # while the GPU is busy
        except torch.OutOfMemoryError:
            self._next = None  # the next call will say so
        return now.made

    def _following(self, stream: int) -> Next:
        """The next launch, if it is on this stream: outputs have memory, and the instance knows it."""
        made = tuple([None if like is None else torch.empty_like(like) for like in self._likes])
        addresses = tuple([0 if value is None else value.data_ptr() for value in made])
        instance = self._instances.get(addresses)
        return Next(self._told(addresses) if instance is None else instance, made, stream)

    def _told(self, addresses: tuple[int, ...]) -> Instance:
        """An instance that writes to these addresses: one more, or the one that was told longest ago."""
        if () in self._instances or self.random or len(self._instances) == INSTANCES:
            instance = self._instances.pop(next(iter(self._instances)))
        else:
            instance = Instance(self.graph, self._reads, self._writes, another=True)
        instance.write_to(addresses)
        self._instances[addresses] = instance
        return instance
