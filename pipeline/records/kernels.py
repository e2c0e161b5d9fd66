"""``Kernels``: the GPU kernels that TensorRT-RTX compiled for a program's engines on one kind of machine."""

from __future__ import annotations

from typing import Final

from attrs import field, frozen


@frozen
class Kernels:
    """Compiled kernels in TensorRT's format, and the ``machine`` that they are for, as text of GPU, driver, CUDA and
    library (`runtime.engine_cache.machine_key`)."""

    machine: str = ""
    data: bytes = field(default=b"", repr=False)

    def __bool__(self) -> bool:
        return bool(self.data)


NO_KERNELS: Final = Kernels()
