"""The C heap while TensorRT builds: what it frees goes back to the operating system."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MEGABYTE = 1 << 20


@contextmanager
def large_blocks_returned() -> Iterator[None]:
    """Inside it, glibc maps each block of 1 MB or more by itself, so that freeing the block returns it to the system.

    TensorRT allocates and frees twice the weights while it builds; glibc by default keeps blocks of up to 32 MB in
    heaps, which fragment: with RTX 1.4 the peak was 2.0 to 2.1 times the weights instead of 1.9, and 0.8 times stayed
    behind instead of 0.3. Afterwards the thresholds are those that glibc itself arrives at once a program has freed
    large blocks. It is a setting of the process, and changes no result; with another C library nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        yield
        return
    mallopt(_MMAP_THRESHOLD, _MEGABYTE)
    try:
        yield
    finally:
        mallopt(_MMAP_THRESHOLD, 32 * _MEGABYTE)
        mallopt(_TRIM_THRESHOLD, 64 * _MEGABYTE)
