"""Detect whether the current thread is tracing. torch's flags (``torch.compiler.is_compiling``) are process-wide."""

from __future__ import annotations

import threading
from typing import Final

import torch

one_export: Final = threading.RLock()
"""A lock for exporting or tracing a graph: torch then patches objects of the whole process, such as `Module.__call__`.
Exports by other code do not wait for it. Acquire it only by ``with`` in a function: otherwise an interrupt could leave
it locked."""

_MODES: Final = (torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.PROXY)


def is_tracing() -> bool:
    """Return whether operator calls in this thread are traced: on fake tensors, or into a graph."""
    return any(torch._C._get_dispatch_mode(mode) is not None for mode in _MODES)
