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
    """Return a context that captures in ``graph`` the work queued on ``stream``, with memory from ``pool``.

    runs_torch: whether this work includes PyTorch operators. If so, torch's cuBLAS workspaces are freed before and
    after, so that the graph gets one from its own pool. Otherwise the graph would use torch's workspace for the stream.
    ``torch.compile`` frees that before it captures, and the graph would then write to memory that other work uses.

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

    CUDA refuses to end a capture in which the host waited for the GPU. There torch's ``capture_end`` would raise before
    it resets the allocator and the random number generators. The allocator would then not free memory that several
    streams used, and the generators would raise errors. So this function ends the capture by a call of CUDA, begins an
    empty capture, and calls ``capture_end`` for the empty one.
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
