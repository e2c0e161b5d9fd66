"""Capture calls in CUDA graphs whose memory is their own, and end captures that fail."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from pipeline.aten.types import Argument
from pipeline.runtime import graph_copies

capturing = threading.RLock()
"""Held while a call is captured: one stream serves all captures."""


@contextmanager
def captured(graph: torch.cuda.CUDAGraph, pool: Argument, stream: torch.cuda.Stream, in_torch: bool) -> Iterator[None]:
    """A context whose work on a stream is captured in a graph, with memory of a pool.

    in_torch: operators of PyTorch are part of it. cuBLAS has one workspace for a stream, which ``torch.compile`` frees
    when it captures its own graphs. A graph with a workspace from before its capture would then write to the memory of
    others. So each graph gets one from its pool.

    Raises:
        RuntimeError: the work cannot be captured, since it waits for the GPU.
    """
    with capturing:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        _free_workspaces(in_torch)
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    yield
                    _check(stream)
                except BaseException:
                    _end_failed(graph, stream)
                    raise
                graph.capture_end()
        finally:
            _free_workspaces(in_torch)


def _free_workspaces(in_torch: bool) -> None:
    if in_torch:
        torch._C._cuda_clearCublasWorkspaces()


def _check(stream: torch.cuda.Stream) -> None:
    """Raise an error if CUDA has given up a capture."""
    cudart = graph_copies.cudart
    if cudart is not None:
        (status,) = graph_copies.checked(cudart.cudaStreamIsCapturing(stream.cuda_stream))
        if status != cudart.cudaStreamCaptureStatus.cudaStreamCaptureStatusActive:
            raise RuntimeError("something in the call waits for the GPU, which a CUDA graph cannot record")


def _end_failed(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> None:
    """End a capture that failed.

    CUDA refuses to end a capture in which something waited for the GPU. torch's ``capture_end`` then raises before it
    tells the allocator, which would free no memory from then on, and the random number generators, which would draw no
    numbers. So an empty capture takes the place of the failed one, and torch ends that.
    """
    cudart = graph_copies.cudart
    if cudart is not None:
        _, left = cudart.cudaStreamEndCapture(stream.cuda_stream)
        if left:
            cudart.cudaGraphDestroy(left)
        cudart.cudaGetLastError()
        mode = cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        graph_copies.checked(cudart.cudaStreamBeginCapture(stream.cuda_stream, mode))
    with suppress(RuntimeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the graph is empty
        graph.capture_end()
