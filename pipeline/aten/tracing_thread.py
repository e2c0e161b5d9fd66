"""Detect whether the current thread traces: torch's flags (``torch.compiler.is_compiling``) are process-wide."""

from __future__ import annotations

from typing import Final

import torch

_MODES: Final = (torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.PROXY)


def is_tracing() -> bool:
    """Return whether this thread's operator calls are traced: on fake tensors, or into a graph."""
    return any(torch._C._get_dispatch_mode(mode) is not None for mode in _MODES)
