"""The kernels that a saved program takes along: those that TensorRT-RTX compiled on the machine that writes it."""

from __future__ import annotations

from pipeline.compiled import Compiled
from pipeline.records.kernels import Kernels
from pipeline.runtime.engine_cache import RuntimeCache, machine
from pipeline.trt import has_gpu


def compiled_kernels(compiled: Compiled) -> Kernels:
    """Return the kernels of a program's engines: its own, or those that the cache has for the current GPU."""
    if compiled.kernels or not compiled.engines or not has_gpu() or compiled.settings.runtime_cache is False:
        return compiled.kernels
    cache = RuntimeCache.of(compiled.networks, compiled.settings.runtime_cache)
    stored = None if cache is None else cache.stored()
    return compiled.kernels if stored is None else Kernels(machine(), stored)
