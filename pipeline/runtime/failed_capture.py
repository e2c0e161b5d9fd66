"""End the capture of a CUDA graph that failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from pipeline.aten.types import Argument


@contextmanager
def ended_if_it_fails(pool: Argument) -> Iterator[None]:
    """A context around a capture with this pool of memory.

    CUDA refuses to end a capture in which something waited for the GPU. torch's ``capture_end`` then raises before it
    tells the allocator, and ``torch.cuda.graph`` before it leaves the stream. While a capture is under way the
    allocator frees neither cached memory when it is short, nor tensors that several streams used.
    """
    stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None
    try:
        yield
    except BaseException:
        if stream is not None:
            torch.cuda.set_stream(stream)
        with suppress(RuntimeError, AssertionError):  # the allocator knows of no such capture: it has ended
            device = torch.cuda.current_device()
            torch._C._cuda_endAllocateToPool(device, pool)
            torch._C._cuda_releasePool(device, pool)
        raise
