"""A method's seconds, told in another process that loads nothing for it."""

from __future__ import annotations

import os
from typing import Any


def told(group: tuple[str, str, int], method: str) -> dict[str, Any]:
    """What `benchmarks.gpu_compile.seconds` gives, for methods by what happens to them."""
    if method == "dies":
        os._exit(3)
    if method == "raises":
        raise RuntimeError(f"no {group[0]}\nat all")
    return {"compile_seconds": float(group[2]), "host_peak_mb": os.getpid(), "relative_error": 0.5}
