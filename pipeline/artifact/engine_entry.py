"""Entries of the engine cache: an engine's plan and its description, which are verified before use.
An entry's key is a digest of everything that an engine depends on, but not of names."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import platform
import struct
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, TypeAlias

import torch
from attrs import frozen

from pipeline.artifact import codec
from pipeline.artifact.hashing import THREADS, SharedFile
from pipeline.artifact.json_data import MalformedError
from pipeline.aten.tensor_type import raw_bytes
from pipeline.build.serialized_plans import BuildOrder
from pipeline.errors import PipelineError
from pipeline.network.canonical import Canonical
from pipeline.settings import ENGINE
from pipeline.trt import CAPABILITIES, LIBRARY

FORMAT = "engine 1"
"""The version of cache keys and entries. A new version has other keys, so that older entries are never read."""


def tensor_digests(weights: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the SHA-256 of each tensor's bytes, computed on several threads, since this is slow for large weights."""

    def digest(tensor: torch.Tensor) -> str:
        return hashlib.sha256(memoryview(raw_bytes(tensor.cpu()).numpy())).hexdigest()  # type: ignore[arg-type]

    with ThreadPoolExecutor(THREADS) as threads:
        return dict(zip(weights, threads.map(digest, weights.values()), strict=True))


def engine_key(order: BuildOrder, network: Canonical, weight_digests: Mapping[str, str]) -> str:
    """Return the key of an engine, 64 hexadecimal digits.

    It depends on the layers, their arguments and connections; shapes, ranges and dtypes; the builder's settings;
    TensorRT's version and target GPUs; the platform and NVIDIA_TF32_OVERRIDE; but not on names.
    ``weight_digests``: the SHA-256 of each weight whose value the engine depends on, by name.
    """
    settings = (f"{name}={getattr(order.settings, name)!r}" for name in ENGINE)
    held = (f"{i} {weight_digests.get(name, 'refitted')}" for i, name in enumerate(network.weights))
    streams = f"streamed={order.settings.weight_streaming_budget is not None}"
    tf32 = f"NVIDIA_TF32_OVERRIDE={os.environ.get('NVIDIA_TF32_OVERRIDE', '')}"
    machine = [LIBRARY, f"{platform.system()} {platform.machine()}", tf32]
    if not CAPABILITIES.compute_capabilities and torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        machine.append(f"{gpu.name} {gpu.major}.{gpu.minor} {gpu.multi_processor_count}")
    parts = (FORMAT, network.text, *held, f"refit={order.refit_flags}", streams, *settings, *machine)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


Buffer: TypeAlias = "bytes | memoryview | mmap.mmap"
MAGIC = b"trtp-engine\n"
_FOOT = struct.Struct(f"<Q32s{len(MAGIC)}s")
MOST = 1 << 26
"""The maximum bytes of the text in a cache entry."""


class CorruptEntryError(PipelineError):
    """A cache entry is truncated or altered, or was saved under another key."""


@frozen
class EngineEntry:
    """The description of a cached plan. ``bindings``: names of its inputs and outputs, in the network's order.
    ``weights``: names of its weights, in order of first use. ``values``: the SHA-256 of each refittable weight."""

    key: str
    library: str
    digest: str
    bindings: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


def pack(entry: EngineEntry, plan: Buffer) -> Iterator[memoryview | bytes]:
    """Yield an entry's bytes in parts: the plan (first, for memory-mapping), the description, lengths and digests."""
    text = json.dumps(codec.to_json(entry, EngineEntry), separators=(",", ":")).encode()
    yield memoryview(plan)
    yield text
    yield _FOOT.pack(len(text), hashlib.sha256(text).digest(), MAGIC)


def unpack(file: BinaryIO, entry_size: int, expected_key: str) -> tuple[EngineEntry, bytes | mmap.mmap]:
    """Read the entry at the start of an open file, and its plan, memory-mapped if the file is on disk. Raise a
    `CorruptEntryError` if the entry was truncated, altered, or saved under another key."""
    end, read = entry_size - _FOOT.size, SharedFile(file).read_at
    if end < 0:
        raise CorruptEntryError("the entry was truncated: it is shorter than its footer")
    length, digest, magic = _FOOT.unpack(read(end, _FOOT.size))
    if magic != MAGIC or length > min(MOST, end):
        raise CorruptEntryError("the footer of the entry was altered")
    text = read(end - length, length)
    if hashlib.sha256(text).digest() != digest:
        raise CorruptEntryError("the engine's description was altered")
    try:
        entry: EngineEntry = codec.from_json(json.loads(text), EngineEntry)
    except (MalformedError, ValueError, RecursionError) as error:
        raise CorruptEntryError(f"the engine's description is malformed: {error}") from None
    if entry.key != expected_key:
        raise CorruptEntryError(f"the entry was saved under another key than the requested one: {entry.key[:16]}…")
    if length == end:
        raise CorruptEntryError("the entry has no engine plan")
    try:
        plan: bytes | mmap.mmap = mmap.mmap(file.fileno(), end - length, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # io.UnsupportedOperation is a subclass of both
        plan = read(0, end - length)
    if hashlib.sha256(plan).hexdigest() != entry.digest:
        raise CorruptEntryError("the engine's plan was altered")
    return entry, plan
