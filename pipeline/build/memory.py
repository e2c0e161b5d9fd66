"""Save memory in builds: store weights computed for TensorRT in an unnamed, memory-mapped file, of which only the part
being read is in memory, and return memory that TensorRT frees to the operating system."""

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
    """Make glibc return the free pages of its heaps, which it would keep for later allocations.

    TensorRT copies weights in blocks that glibc takes from its heaps, and frees them phase by phase. Returning them
    between the phases lowers the peak by 0.5 times the weights for ResNet-50 and by 0.25 times for a Llama-like model
    (RTX 1.4), and leaves nothing behind, where 0.8 times the weights stayed before. A call takes a millisecond or two
    and changes no setting and no result. With another C library it does nothing.
    """
    if _TRIM is not None:
        _TRIM(0)


LEAST = 1 << 16
"""The least bytes of a tensor that is moved to the file."""
PIECE = 1 << 24
"""The bytes that are copied from a GPU and written at once."""
_ALIGNMENT = 4096


class MemoryMappedWeights:
    """A memory-mapped file for tensors of known sizes in bytes. If the disk has no room, they stay in memory."""

    def __init__(self, sizes: list[int]) -> None:
        self.room = sum(_aligned(size) for size in sizes if size >= LEAST)
        self.used = 0
        self.file = _file(self.room) if self.room else None
        self.mapping = mmap.mmap(self.file.fileno(), self.room) if self.file else None

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor with the same values in the file, or the tensor itself if it is small or does not fit."""
        if self.mapping is None or tensor.nbytes < LEAST or self.used + _aligned(tensor.nbytes) > self.room:
            return tensor
        data = torch.frombuffer(self.mapping, dtype=torch.uint8, count=tensor.nbytes, offset=self.used)
        try:
            self._write(raw_bytes(tensor))
        except OSError:
            return tensor
        self.used += _aligned(tensor.nbytes)
        return data.view(tensor.dtype).view(tensor.shape)

    def _write(self, data: torch.Tensor) -> None:
        """Write bytes at the next tensor's offset. Writing through the mapping would take over three times as long,
        since each page is read before it is written."""
        assert self.file is not None
        for start in range(0, data.numel(), PIECE):
            piece: Any = data[start : start + PIECE].cpu().numpy()
            done = 0
            while done < len(piece):
                done += os.pwrite(self.file.fileno(), piece[done:], self.used + start + done)

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()  # the mapping stays valid

    def leave_memory(self) -> None:
        leave_memory(self.mapping)


def leave_memory(mapping: bytes | mmap.mmap | None) -> None:
    """Drop the pages of a mapped file from this process's memory; reading them brings them back, unchanged."""
    if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _file(room: int) -> IO[bytes] | None:
    """Return an unnamed file with allocated space: on a full disk, a write to the mapping would kill the process."""
    if not hasattr(os, "posix_fallocate"):
        return None
    file = tempfile.TemporaryFile(prefix="pipeline-weights-")  # noqa: SIM115  # open as long as it is mapped
    try:
        os.posix_fallocate(file.fileno(), 0, room)
    except OSError:
        file.close()
        return None
    return file
