"""A device guard for CUDA in builds of torch that have none, so that fake tensors on ``cuda`` can be traced.

torch asks a device's guard for the current device: for ``x[0]``, ``x.to("cuda")``, for gradients. In builds with CUDA
and no GPU ``FakeTensorMode`` installs a guard that answers 0; builds for the CPU have no guard, and raise "not linked
with support for cuda devices" (torch 2.11 to 2.13). This module installs one: torch's own base for guards written in
Python. It does not allow tensors with values on ``cuda``.
"""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any

import torch

from pipeline.errors import CaptureError

REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
"""The symbol of ``c10::impl::device_guard_impl_registry``: a pointer to a guard for each type of device, by number."""

_lock = threading.Lock()


def ensure_cuda_guard() -> None:
    """Install a guard for CUDA if torch has none, to stay, as torch's own does; `CaptureError` if torch takes none."""
    if torch.backends.cuda.is_built():
        return
    with _lock:
        try:
            _ensure()
        except (OSError, ValueError, AttributeError) as error:
            raise CaptureError(
                f"this build of torch has no devices of type cuda, and cannot be given any: {error}",
                "install a build of torch with CUDA; it needs no GPU to capture a model as on one",
            ) from error


def _ensure() -> None:
    """Let torch register a guard for its device type for private use, and move it to CUDA's place."""
    types: Any = torch._C._autograd.DeviceType
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    registry = (ctypes.c_void_p * (max(map(int, types.__members__.values())) + 1)).in_dll(library, REGISTRY)
    acc: Any = torch._C._acc
    cuda, free = int(types.CUDA), int(types.PrivateUse1)
    if registry[cuda]:
        return

    class Guard(acc.DeviceGuard):  # type: ignore[misc]
        def type_(self) -> object:
            return types.CUDA

    theirs, registry[free] = registry[free], None
    try:
        acc.register_python_privateuseone_device_guard(Guard())
        registry[cuda] = registry[free]
    finally:
        registry[free] = theirs
