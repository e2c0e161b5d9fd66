"""Detect whether the current thread is tracing; torch's flags (``torch.compiler.is_compiling``) are process-wide."""

from __future__ import annotations

import threading
from typing import Final

import torch

one_export: Final = threading.RLock()
"""Held by the thread that exports or traces a graph: torch changes then what is the whole process's, such as
`Module.__call__`. Exports that are not ours do not wait. It is held by a ``with`` in a function: an interrupt takes it
from no other context for sure."""

_MODES: Final = (torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.PROXY)


def is_tracing() -> bool:
    """Return whether this thread's operator calls are traced: on fake tensors, or into a graph."""
    return any(torch._C._get_dispatch_mode(mode) is not None for mode in _MODES)
