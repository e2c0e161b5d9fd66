"""Save memory in builds: keep weights in a memory-mapped file, and return freed memory to the operating system.
The file has no name, and holds the weights that are computed for TensorRT; only the part being read is in memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
from typing import IO, Any

import torch

from pipeline.aten.tensor_type import raw_bytes

_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def return_free_memory() -> None:
    """Make glibc return the free pages of its heaps, which it would otherwise keep for later allocations.

    TensorRT copies weights to blocks in glibc's heaps, and frees these blocks phase by phase. Returning them between
    phases lowers the memory peak by 0.5 times the weights for ResNet-50 and 0.25 times for a Llama-like model
    (TensorRT-RTX 1.4). After a build no freed memory remains in the heaps; without this call, 0.8 times the weights
    remain. A call takes 1–2 ms and changes no setting and no result. With another C library it does nothing.
    """
    if _TRIM is not None:
        _TRIM(0)


LEAST = 1 << 16
"""The minimum bytes of a tensor that is moved to the file; smaller tensors stay in memory."""
PIECE = 1 << 24
"""The number of bytes that are copied from a GPU and written to the file at a time."""
_ALIGNMENT = 4096


class MemoryMappedWeights:
    """A memory-mapped file for tensors of known sizes. If the disk has no space, the tensors stay in memory."""

    def __init__(self, sizes: list[int]) -> None:
        self.room = sum(_aligned_size(size) for size in sizes if size >= LEAST)
        self.used = 0
        self.file = _open_unnamed_file(self.room) if self.room else None
        self.mapping = mmap.mmap(self.file.fileno(), self.room) if self.file else None

    def copy_to_file(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor to the file and return the copy; return the tensor itself if it is small or does not fit."""
        if self.mapping is None or tensor.nbytes < LEAST or self.used + _aligned_size(tensor.nbytes) > self.room:
            return tensor
        data = torch.frombuffer(self.mapping, dtype=torch.uint8, count=tensor.nbytes, offset=self.used)
        try:
            self._write(raw_bytes(tensor))
        except OSError:
            return tensor
        self.used += _aligned_size(tensor.nbytes)
        return data.view(tensor.dtype).view(tensor.shape)

    def _write(self, data: torch.Tensor) -> None:
        """Write a tensor's bytes to the file at the next free offset. A write through the mapping would take over three
        times as long, since each page would be read first."""
        assert self.file is not None
        for start in range(0, data.numel(), PIECE):
            piece: Any = data[start : start + PIECE].cpu().numpy()
            done = 0
            while done < len(piece):
                done += os.pwrite(self.file.fileno(), piece[done:], self.used + start + done)

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()  # the mapping stays valid


def _aligned_size(size: int) -> int:
    """Round a number of bytes up to a multiple of 4096, as tensors in the file start at such offsets."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _open_unnamed_file(size: int) -> IO[bytes] | None:
    """Return an unnamed file with preallocated space, since a write to a mapping on a full disk kills the process."""
    if not hasattr(os, "posix_fallocate"):
        return None
    file = tempfile.TemporaryFile(prefix="pipeline-weights-")  # noqa: SIM115  # open as long as it is mapped
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError:
        file.close()
        return None
    return file
