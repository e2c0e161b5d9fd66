"""The C heap after TensorRT has built: what it freed goes back to the operating system."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def free_memory_returned() -> Iterator[None]:
    """At its end glibc returns the free pages of its heaps, which it would keep for later allocations.

    TensorRT copies weights while it builds, in blocks that glibc takes from its heaps: 0.8 times the weights would stay
    behind with a Llama-like model, and nothing does so. It takes some milliseconds, sets nothing and changes no result;
    with another C library nothing happens.
    """
    try:
        yield
    finally:
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
        if trim is not None:
            trim(0)
