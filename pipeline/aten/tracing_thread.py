"""Tell a thread that traces from others: torch's flags (``torch.compiler.is_compiling``) are the whole process's."""

from __future__ import annotations

from typing import Final

import torch

_MODES: Final = (torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.PROXY)


def is_tracing() -> bool:
    """Whether operators that this thread calls are traced: on fake tensors, or into a graph."""
    return any(torch._C._get_dispatch_mode(mode) is not None for mode in _MODES)
