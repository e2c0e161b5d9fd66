"""Compute the cache key of an engine: a digest of everything it depends on, independent of names."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch

from pipeline.artifact.hashing import THREADS
from pipeline.aten.tensor_bytes import raw_bytes
from pipeline.build.serialized_plans import Order
from pipeline.network.canonical import Canonical
from pipeline.settings import ENGINE
from pipeline.trt import CAPABILITIES, LIBRARY

FORMAT = "engine 1"
"""The version of keys and entries. A new number makes older entries unreachable."""


def digests(weights: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the SHA-256 of each tensor's bytes, computed on threads, since a warm compilation spends its time here."""
    with ThreadPoolExecutor(THREADS) as threads:
        return dict(zip(weights, threads.map(tensor_digest, weights.values()), strict=True))


def tensor_digest(tensor: torch.Tensor) -> str:
    """Return the SHA-256 of a tensor's bytes in hexadecimal; hashing releases the GIL."""
    return hashlib.sha256(memoryview(raw_bytes(tensor.cpu()).numpy())).hexdigest()  # type: ignore[arg-type]


def engine_key(order: Order, form: Canonical, values: Mapping[str, str]) -> str:
    """Return the key of an engine, 64 hexadecimal digits.

    It depends on the layers, their arguments and wiring; shapes, ranges and dtypes; the builder's settings; the
    library, its version and its targets; the platform and NVIDIA_TF32_OVERRIDE. It does not depend on the names of
    nodes, tensors, weights and sizes.

    Args:
        order: the network and its settings.
        form: the network's structure, as `canonical` returns it.
        values: the SHA-256 of each weight whose value the engine depends on, by name.
    """
    settings = (f"{name}={getattr(order.settings, name)!r}" for name in ENGINE)
    held = (f"{i} {values.get(name, 'refitted')}" for i, name in enumerate(form.weights))
    streams = f"streamed={order.settings.weight_streaming_budget is not None}"
    parts = (FORMAT, form.text, *held, f"refit={order.refit_flags}", streams, *settings, *environment())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def environment() -> Iterator[str]:
    """Yield everything that an engine depends on besides the program."""
    yield LIBRARY
    yield f"{platform.system()} {platform.machine()}"
    yield f"NVIDIA_TF32_OVERRIDE={os.environ.get('NVIDIA_TF32_OVERRIDE', '')}"
    if not CAPABILITIES.compute_capabilities and torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        yield f"{gpu.name} {gpu.major}.{gpu.minor} {gpu.multi_processor_count}"
