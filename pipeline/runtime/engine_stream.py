"""Order a worker's runs on CUDA streams: after the caller's earlier work and before its later work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


class Lane:
    """Order one worker's runs on the streams of a GPU.

    A worker has one scratch memory, so a run waits for the previous run if that was on another stream. On the default
    stream TensorRT would synchronize the device, so such a run uses the lane's own stream; the two streams wait for
    each other. To the caller all work is on the current stream.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._index = device.index or 0
        self._own = torch.cuda.Stream(device)
        self._last, self._handle = self._own, self._own.cuda_stream
        self._event = torch.cuda.Event()

    def elsewhere(self) -> bool:
        """Return whether another GPU is current."""
        return bool(torch._C._cuda_getDevice() != self._index)

    def here(self) -> torch.cuda.Stream:
        """Return the current stream, ordered after the worker's last run."""
        self.handle()
        return self._last

    def handle(self) -> int:
        """Return the stream's handle as torch's generated code does, at a tenth of ``current_stream``'s cost."""
        handle: int = torch._C._cuda_getCurrentRawStream(self._index)
        if handle != self._handle:
            self._move(torch.cuda.current_stream(self.device))
        return handle

    def run(self, body: Callable[..., T], *args: object) -> T:
        """Call ``body`` with a stream for TensorRT, which is current during the call, and ``args``."""
        if torch._C._cuda_getCurrentRawStream(self._index) != 0:
            return body(self.here(), *args)
        caller = torch.cuda.current_stream(self.device)
        self._follow(self._own, caller)
        torch.cuda.set_stream(self._own)
        try:
            return body(self.here(), *args)
        finally:
            torch.cuda.set_stream(caller)
            self._follow(caller, self._own)

    def _move(self, stream: torch.cuda.Stream) -> None:
        if not torch.cuda.is_current_stream_capturing():
            self._follow(stream, self._last)
        self._last, self._handle = stream, stream.cuda_stream

    def _follow(self, stream: torch.cuda.Stream, other: torch.cuda.Stream) -> None:
        """Make a stream wait for the work that another has queued so far."""
        self._event.record(other)
        stream.wait_event(self._event)
