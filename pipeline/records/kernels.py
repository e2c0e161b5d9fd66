"""``Kernels``: the GPU kernels that TensorRT-RTX compiled for a program's engines on one kind of machine."""

from __future__ import annotations

from typing import Final

from attrs import field, frozen


@frozen
class Kernels:
    """Compiled kernels in TensorRT's format. ``machine``: a text that names the GPU, driver, CUDA and TensorRT versions
    that they are for (`runtime.engine_cache.machine_key`)."""

    machine: str = ""
    data: bytes = field(default=b"", repr=False)

    def __bool__(self) -> bool:
        return bool(self.data)


NO_KERNELS: Final = Kernels()
