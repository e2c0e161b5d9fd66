"""Compute the cache key of an engine: the digest of everything that reaches it, independent of names."""

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
"""What keys and entries are made of. Another number where either changes: older entries are then never found."""


def digests(weights: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The SHA-256 of each tensor's bytes, computed on threads: most of what a warm compilation reads is tensors."""
    with ThreadPoolExecutor(THREADS) as threads:
        return dict(zip(weights, threads.map(tensor_digest, weights.values()), strict=True))


def tensor_digest(tensor: torch.Tensor) -> str:
    """The SHA-256 of a tensor's bytes, in hexadecimal digits. Other threads run meanwhile."""
    return hashlib.sha256(memoryview(raw_bytes(tensor.cpu()).numpy())).hexdigest()  # type: ignore[arg-type]


def engine_key(order: Order, form: Canonical, values: Mapping[str, str]) -> str:
    """The key of an engine, 64 hexadecimal digits.

    It changes with the layers, their arguments and wiring; shapes, ranges and dtypes; the settings that reach the
    builder; the library, its version and its targets; the machine's platform and NVIDIA_TF32_OVERRIDE. Names of nodes,
    tensors, weights and sizes do not change it.

    Args:
        order: the network and its settings.
        form: the network by structure, as `canonical` gives it.
        values: the SHA-256 of each weight whose value the engine depends on, by name.
    """
    settings = (f"{name}={getattr(order.settings, name)!r}" for name in ENGINE)
    held = (f"{i} {values.get(name, 'refitted')}" for i, name in enumerate(form.weights))
    streams = f"streamed={order.settings.weight_streaming_budget is not None}"
    parts = (FORMAT, form.text, *held, f"refit={order.refit_flags}", streams, *settings, *around())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def around() -> Iterator[str]:
    """Everything that reaches an engine without being part of the program."""
    yield LIBRARY
    yield f"{platform.system()} {platform.machine()}"
    yield f"NVIDIA_TF32_OVERRIDE={os.environ.get('NVIDIA_TF32_OVERRIDE', '')}"
    if not CAPABILITIES.compute_capabilities and torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        yield f"{gpu.name} {gpu.major}.{gpu.minor} {gpu.multi_processor_count}"
