"""On which CUDA stream an engine runs, after what, and before what."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch


class Lane:
    """A GPU and the order of one execution context's runs on its streams.

    A context has one scratch memory, so a run waits for the run before it, whatever stream that was on. Given the
    default stream, TensorRT would synchronize the whole device: such a run goes to a stream of the lane's own, which
    waits for the default stream and is waited for by it. To the caller all happens on the current stream.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._own = torch.cuda.Stream(device)
        self._done = torch.cuda.Event()
        self._kept: deque[tuple[torch.cuda.Event, Sequence[torch.Tensor]]] = deque()

    def guard(self) -> torch.cuda.device:
        """A context manager that makes the lane's GPU the current one."""
        return torch.cuda.device(self.device)

    @contextmanager
    def turn(self, host: Sequence[torch.Tensor] = ()) -> Iterator[torch.cuda.Stream]:
        """The stream to enqueue a run on. ``host`` are tensors in host memory that it reads: kept until it is over."""
        caller = torch.cuda.current_stream(self.device)
        aside = caller.cuda_stream == 0
        stream = self._own if aside else caller
        if aside:
            stream.wait_stream(caller)
        stream.wait_event(self._done)
        try:
            yield stream
        finally:
            self._done.record(stream)
            self._keep(host, stream)
            if aside:
                caller.wait_stream(stream)

    def _keep(self, host: Sequence[torch.Tensor], stream: torch.cuda.Stream) -> None:
        while self._kept and self._kept[0][0].query():
            self._kept.popleft()
        if host:
            over = torch.cuda.Event()
            over.record(stream)
            self._kept.append((over, host))
