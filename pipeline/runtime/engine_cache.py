"""Keep the kernels that TensorRT-RTX compiles for a program's engines on disk for the next start.

Making the first context of ResNet-50 takes 1.6 s on an H200 without the cache and 0.07 s with it (docs/tensorrt.md).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import platformdirs
import torch

from pipeline.network.description import Network
from pipeline.runtime.atomic import replacing
from pipeline.runtime.private import MODE, make_private, opened_private
from pipeline.trt import CAPABILITIES, LIBRARY, trt

log = logging.getLogger(__name__)

FORMAT = "kernels 2"
"""What keys and files are made of. Another number where either changes: older files are then never found."""

_DIGEST = 32
KEPT = 256
"""So many programs' kernels stay on disk; those not used for longest are deleted."""


def cache_folder(name: str) -> Path:
    """A folder in the user's cache, or in the one that ``PIPELINE_CACHE`` names: ``runtime`` has kernels, ``engines``
    engines."""
    chosen = os.environ.get("PIPELINE_CACHE")
    return (Path(chosen) if chosen else platformdirs.user_cache_path("tensorrt-pipeline")) / name


def default_directory() -> Path:
    """Where the kernels are kept."""
    return cache_folder("runtime")


def cache_key(networks: Iterable[Network]) -> str:
    """The key of the kernels: the networks, the GPU, the driver, the library and whether TF32 is switched off.

    It does not contain the weights: TensorRT finds a kernel by its computation, so a network with other weights starts
    with existing kernels (0.11 s instead of 2.9 for the context of ViT-B on an H200).
    """
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    driver = getattr(torch._C, "_cuda_getDriverVersion", lambda: "")()
    parts = (
        *(network.digest for network in networks),
        f"{gpu.name} {gpu.major}.{gpu.minor}",
        f"driver {driver}, CUDA {torch.version.cuda}",
        LIBRARY,
        FORMAT,
        f"NVIDIA_TF32_OVERRIDE={os.environ.get('NVIDIA_TF32_OVERRIDE', '')}",
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class RuntimeCache:
    """The compiled kernels of a program's engines, in memory for all their contexts and, unless ``path`` is None, in a
    file. A kernel that two of them have is compiled once.

    The file is written under another name and renamed, so that concurrent processes see a complete one; its SHA-256
    follows the kernels. A file that was altered, that others could have written, or that TensorRT cannot read is
    ignored with a warning and replaced.
    """

    def __init__(self, path: Path | None, given: bytes = b"") -> None:
        self.path, self._given = path, given
        self.handle: Any = None
        self._size = 0
        self._lock = threading.Lock()

    @classmethod
    def of(
        cls, networks: Iterable[Network], kept: bool | str | os.PathLike[str], given: bytes = b""
    ) -> RuntimeCache | None:
        """The cache of the engines of these networks: in the user's folder (True), another one, or only in memory
        (False), which begins with the kernels that are ``given``.

        None if TensorRT has no such cache.
        """
        if not CAPABILITIES.runtime_config:
            return None
        if kept is False:
            return cls(None, given)
        return cls((default_directory() if kept is True else Path(kept)) / f"{cache_key(networks)}.kernels")

    def attach(self, cuda_engine: trt.ICudaEngine) -> None:
        """Make TensorRT's cache, with the file's contents, if there is none yet."""
        if self.handle is not None:
            return
        self.handle = cuda_engine.create_runtime_config().create_runtime_cache()
        stored = self._stored()
        if stored is None:
            return
        if self.handle.deserialize(stored):
            self._size = len(stored)
        else:
            log.warning("%s holds no kernels that %s can read; they are compiled again", self.path, LIBRARY)
            self.handle = cuda_engine.create_runtime_config().create_runtime_cache()

    def _stored(self) -> bytes | None:
        try:
            if self.path is None:
                return self._given or None
            with opened_private(self.path) as file:
                data = file.read()
            with contextlib.suppress(OSError):
                os.utime(self.path)
            kept, digest = data[:-_DIGEST], data[-_DIGEST:]
            if hashlib.sha256(kept).digest() == digest:
                return kept
            log.warning("the kernels in %s were altered; they are compiled again", self.path)
            return None
        except FileNotFoundError:
            return self._given or None
        except OSError as error:
            log.warning("the kernels in %s cannot be read (%s); they are compiled again", self.path, error)
            return None

    def serialized(self) -> bytes:
        """The kernels that have been compiled."""
        data = None if self.handle is None else self.handle.serialize()
        return b"" if data is None else bytes(memoryview(data))

    def save(self) -> bool:
        """Write the kernels to the file if there are new ones; return whether it was written. A failure is a
        warning."""
        if self.path is None or self.handle is None:
            return False
        with self._lock:
            data = self.handle.serialize()
            if data is None or memoryview(data).nbytes == self._size:
                return False
            try:
                self._replace(self.path, memoryview(data))
            except OSError as error:
                log.warning("the compiled kernels cannot be kept in %s: %s", self.path, error)
                return False
            self._size = memoryview(data).nbytes
            return True

    @staticmethod
    def _replace(path: Path, data: memoryview) -> None:
        make_private(path.parent)
        with replacing(path, mode=MODE, size=lambda: data.nbytes) as file:
            file.write(data)
            file.write(hashlib.sha256(data).digest())
        _forget_oldest(path.parent)


def _forget_oldest(folder: Path) -> None:
    kept = sorted(folder.glob("*.kernels"), key=_last_used, reverse=True)
    for old in kept[KEPT:]:
        old.unlink(missing_ok=True)


def _last_used(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0
