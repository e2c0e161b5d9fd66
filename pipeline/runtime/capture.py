"""Capture calls in CUDA graphs that share no memory with other work, and end captures that fail."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from pipeline.aten.types import Argument
from pipeline.runtime import graph_copies

capturing = threading.RLock()
"""The lock that a thread holds while it captures a call: one stream serves all captures."""


@contextmanager
def capture(graph: torch.cuda.CUDAGraph, pool: Argument, stream: torch.cuda.Stream, runs_torch: bool) -> Iterator[None]:
    """Return a context that captures its work on a stream in a graph, with memory from a pool.

    runs_torch: whether the work includes PyTorch operators. If so, each graph allocates a cuBLAS workspace from its own
    pool: torch has a workspace for each stream, which ``torch.compile`` frees before it captures. A graph captured with
    such a workspace would then write to memory that other work uses.

    Raises:
        RuntimeError: CUDA cannot capture the work, for example because it waits for the GPU.
    """
    with capturing:
        _free_cublas_workspaces(runs_torch)
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    yield
                    _check_capture(stream)
                    graph.capture_end()
                except BaseException:
                    _end_failed_capture(graph, stream)
                    raise
        finally:
            _free_cublas_workspaces(runs_torch)


def free_unused_memory() -> None:
    """Free PyTorch's unused GPU memory before the first capture, because a capture cannot free memory."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _free_cublas_workspaces(runs_torch: bool) -> None:
    """Free torch's cuBLAS workspaces if the captured work includes PyTorch operators (``runs_torch``)."""
    if runs_torch:
        torch._C._cuda_clearCublasWorkspaces()


def _check_capture(stream: torch.cuda.Stream) -> None:
    """Raise an error if CUDA has invalidated the capture on this stream."""
    cudart = graph_copies.cudart
    if cudart is not None:
        (status,) = graph_copies.check_cuda(cudart.cudaStreamIsCapturing(stream.cuda_stream))
        if status != cudart.cudaStreamCaptureStatus.cudaStreamCaptureStatusActive:
            raise RuntimeError("CUDA aborted the graph capture: the call waits for the GPU, or CUDA cannot capture it")


def _end_failed_capture(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> None:
    """End a capture that failed, so that torch's state is as before the capture.

    CUDA refuses to end a capture in which the host waited for the GPU. torch's ``capture_end`` would then raise before
    it resets the allocator (which would not free memory that several streams used) and the random number generators
    (which would raise). So this function ends the capture itself, begins an empty one, and lets torch end that.
    """
    cudart = graph_copies.cudart
    if cudart is not None:
        _, left = cudart.cudaStreamEndCapture(stream.cuda_stream)
        if left:
            cudart.cudaGraphDestroy(left)
        cudart.cudaGetLastError()
        mode = cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        cudart.cudaStreamBeginCapture(stream.cuda_stream, mode)
    with suppress(RuntimeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the graph is empty
        graph.capture_end()
