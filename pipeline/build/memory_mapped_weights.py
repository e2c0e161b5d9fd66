"""Keep weights made for TensorRT in a nameless, memory-mapped file: only what is being read of them is in memory."""

from __future__ import annotations

import mmap
import os
import tempfile

import torch

LEAST = 1 << 16
"""Smaller tensors, in bytes, stay where they are."""
_ALIGNMENT = 4096


class MemoryMappedWeights:
    """A memory-mapped file for tensors of known sizes in bytes. Where the disk has no room, they stay in memory."""

    def __init__(self, sizes: list[int]) -> None:
        self.room = sum(_aligned(size) for size in sizes if size >= LEAST)
        self.used = 0
        self.mapping = _mapping(self.room) if self.room else None

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same values in the file, or the tensor itself where it is small or has no room there."""
        if self.mapping is None or tensor.nbytes < LEAST or self.used + _aligned(tensor.nbytes) > self.room:
            return tensor
        data = torch.frombuffer(self.mapping, dtype=torch.uint8, count=tensor.nbytes, offset=self.used)
        self.used += _aligned(tensor.nbytes)
        return data.view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def leave_memory(self) -> None:
        """What was read leaves this process's memory, to be read again when it is needed."""
        if self.mapping is not None:
            leave_memory(self.mapping)


def leave_memory(mapping: bytes | mmap.mmap) -> None:
    """The pages of a mapped file leave this process's memory; reading them brings them back, unchanged."""
    if hasattr(mmap, "MADV_DONTNEED") and hasattr(mapping, "madvise"):
        mapping.madvise(mmap.MADV_DONTNEED)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _mapping(room: int) -> mmap.mmap | None:
    """A shared mapping of a file that has its room for certain: a full disk would end the process on a write."""
    if not hasattr(os, "posix_fallocate"):
        return None
    try:
        with tempfile.TemporaryFile(prefix="pipeline-weights-") as file:
            os.posix_fallocate(file.fileno(), 0, room)
            return mmap.mmap(file.fileno(), room)
    except OSError:
        return None
