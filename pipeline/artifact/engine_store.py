"""Engine stores: an interface of two methods, a local folder of limited size, and a URL that several machines share."""

from __future__ import annotations

import hashlib
import io
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

import filelock
from attrs import field, frozen

from pipeline.artifact.engine_entry import Buffer
from pipeline.aten.types import Leaf
from pipeline.errors import ArtifactWarning, require_package, warn
from pipeline.frozen import FrozenDict
from pipeline.records.wording import kind_of
from pipeline.runtime.atomic import replace_file
from pipeline.runtime.engine_cache import cache_folder
from pipeline.runtime.private import MODE, make_private_folder, open_private_file

SUFFIX = ".engine"
ABANDONED = 3600.0
"""The seconds without a write after which a partial file is assumed to belong to a killed process."""
_KEY = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,199}", re.ASCII)
_DIGEST = 32


@runtime_checkable
class EngineStore(Protocol):
    """The protocol of engine stores: `pipeline.cached` calls these methods. Keys are 64 hexadecimal digits. Entries
    contain a digest: an altered entry is discarded with a warning, and its engine is built again."""

    def load(self, key: str) -> bytes | None:
        """Return the bytes saved under a key; None if there are none."""

    def save(self, key: str, data: bytes, /) -> None:
        """Save bytes under a key. If the key already has an entry, the store may replace or keep it."""


@frozen
class StoreInMemory:
    """Adapter with which an `EngineStore` is used as a `DiskStore` is; it holds whole entries in memory."""

    store: EngineStore

    def open_entry_with_size(self, key: str) -> tuple[BinaryIO, int] | None:
        data = self.store.load(key)
        return None if data is None else (io.BytesIO(data), len(data))

    def write(self, key: str, parts: Iterable[Buffer]) -> None:
        self.store.save(key, b"".join(parts))

    def delete(self, key: str) -> None:
        """Do nothing: the entry is replaced when its engine is built again."""

    def lock_builds(self, keys: Iterable[str]) -> AbstractContextManager[None]:
        """Do nothing: two processes may build the same engine, and both save it."""
        return nullcontext()


def _to_cache_folder(folder: str | os.PathLike[str] | None) -> Path:
    """Convert a folder argument to a path; None becomes ``engines`` in the user's cache folder."""
    return cache_folder("engines") if folder is None else Path(folder).expanduser()


def _check_size_limit(_: object, __: object, size: object) -> None:
    """Raise a `TypeError` unless ``size``, in bytes, is an int of at least 0; attrs calls this validator."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise TypeError(f"size is {size!r}: expected a number of bytes, such as 5 << 30 for 5 GiB")


@frozen
class DiskStore:
    """An engine cache in a folder of limited size: the least recently used entries are deleted.

    Threads and processes may share it. Entries are written atomically, even if a process is killed; an altered entry is
    deleted with a warning. If another user owns the folder or can write to it, nothing is read, and a warning says so.
    While one process builds an engine, other processes that need it wait.

    folder: the path; None for ``$PIPELINE_CACHE/engines``, or if that is unset, ``engines`` in the user's cache folder.
    size: the limit for the bytes of all entries together.
    """

    folder: Path = field(default=None, converter=_to_cache_folder)
    size: int = field(default=5 << 30, validator=_check_size_limit)

    def load(self, key: str) -> bytes | None:
        """Return the bytes saved under a key, or None. An altered entry is deleted with a warning."""
        found = self.open_entry_with_size(key)
        if found is None:
            return None
        with found[0] as file:
            data = file.read()
        body, digest = data[:-_DIGEST], data[-_DIGEST:]
        if hashlib.sha256(body).digest() == digest:
            return body
        warn(f"engine cache {self.folder}: entry {key} was altered; it is deleted, not used", ArtifactWarning)
        self.delete(key)
        return None

    def save(self, key: str, data: bytes) -> None:
        """Save bytes under a key; delete the least recently used entries if all entries exceed ``size``. More bytes
        than ``size`` are not saved."""
        self.write(key, [data])

    def open_entry_with_size(self, key: str) -> tuple[BinaryIO, int] | None:
        """Return an entry's file, and its size without the SHA-256 at its end; mark the entry as recently used."""
        path = self._entry_path(key)
        try:
            file = open_private_file(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            warn(f"the engine cache {self.folder} cannot be read, so it is not used: {error}", ArtifactWarning)
            return None
        return file, os.fstat(file.fileno()).st_size - _DIGEST

    def write(self, key: str, parts: Iterable[Buffer]) -> None:
        """Save an entry, given in parts, without joining them in memory. A failure is logged as a warning."""
        path, views = self._entry_path(key), [memoryview(part) for part in parts]
        size = sum(view.nbytes for view in views) + _DIGEST
        if size > self.size:
            limit = f"the cache {self.folder} is limited to {self.size} bytes; raise engine_cache_size"
            warn(f"an engine of {size} bytes is not cached: {limit}", ArtifactWarning)
            return
        try:
            make_private_folder(self.folder)
            if path.is_fifo():
                path.unlink()
            with replace_file(path, permissions=MODE, nbytes=lambda: size) as file:
                sha256 = hashlib.sha256()
                for view in views:
                    sha256.update(view)
                    file.write(view)
                file.write(sha256.digest())
            self._evict_least_recently_used(path)
        except OSError as error:
            warn(f"an engine cannot be saved to the engine cache {self.folder}: {error}", ArtifactWarning)

    def delete(self, key: str) -> None:
        """Delete an entry if possible; if not, the next save replaces it."""
        with suppress(OSError):
            self._entry_path(key).unlink()

    @contextmanager
    def lock_builds(self, keys: Iterable[str]) -> Iterator[None]:
        """Lock these keys against other threads and processes. The system releases the locks of a killed process."""
        with ExitStack() as held:
            for stripe in sorted({key[:2] for key in keys}):  # sorted, to avoid deadlocks
                held.enter_context(self._hold_lock_file(f"{stripe}.lock"))
            yield

    def _entry_path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key[:80]!r} is not a key of an engine cache: use only letters, digits, - and _")
        return self.folder / f"{key}{SUFFIX}"

    @contextmanager
    def _hold_lock_file(self, lock_name: str) -> Iterator[None]:
        """Hold the lock file of this name against other processes; warn if the system has no file locks."""
        folder = self.folder / "locks"
        lock = filelock.FileLock(folder / lock_name)
        try:
            make_private_folder(self.folder)
            make_private_folder(folder)
            lock.acquire()
        except (OSError, NotImplementedError) as error:
            why = f"the engine cache {self.folder} cannot be locked ({error})"
            warn(f"{why}: two processes may build the same engine", ArtifactWarning)
            yield
            return
        try:
            yield
        finally:
            lock.release()

    def _evict_least_recently_used(self, newest: Path) -> None:
        """Delete the least recently used entries until the rest fits, but not ``newest``; also delete the partial files
        that killed processes left."""
        with self._hold_lock_file("all.lock"):
            found = self._matching_files(f"*{SUFFIX}")
            total = sum(stat.st_size for _, stat in found)
            for path, stat in sorted(found, key=lambda row: row[1].st_mtime_ns):
                if total <= self.size:
                    break
                if path != newest:
                    path.unlink(missing_ok=True)
                    total -= stat.st_size
            for part, stat in self._matching_files(f".*{SUFFIX}.*.part"):
                if time.time() - stat.st_mtime > ABANDONED:
                    part.unlink(missing_ok=True)

    def _matching_files(self, pattern: str) -> list[tuple[Path, os.stat_result]]:
        """Return the folder's files that match a pattern, except files that another process deletes meanwhile."""
        found = []
        for path in self.folder.glob(pattern):
            with suppress(FileNotFoundError):
                found.append((path, path.lstat()))
        return found


@frozen
class FsspecStore:
    """An engine cache at a URL that fsspec opens: ``s3://bucket/engines``, ``gcs://…``, ``file:///mnt/shared/engines``.

    It needs the extra ``fsspec``, and the library for the protocol (``s3fs``, ``gcsfs``). Its size is unlimited: use
    the bucket's lifecycle rules. It has no locks: two machines may build the same engine at the same time.

    url: the folder, created when the first entry is saved; `ValueError` if fsspec does not know the protocol.
    options: arguments of fsspec's file system, such as ``{"profile": "ci"}``.
    """

    url: str
    options: FrozenDict[str, object] = field(factory=FrozenDict, converter=FrozenDict, hash=False)
    _system: Leaf = field(init=False, eq=False, repr=False)
    _root: str = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        require_package("fsspec", "fsspec")
        from fsspec.core import url_to_fs

        if not isinstance(self.url, str):
            raise TypeError(f"url is {kind_of(self.url)}, expected a str such as 's3://bucket/engines'")
        try:
            system, root = url_to_fs(self.url, **self.options)
        except ValueError as error:
            known = "fsspec.available_protocols() lists the installed protocols"
            raise ValueError(f"fsspec cannot open {self.url} as an engine cache: {error}; {known}") from None
        object.__setattr__(self, "_system", system)
        object.__setattr__(self, "_root", root.rstrip("/"))

    def load(self, key: str) -> bytes | None:
        try:
            data: bytes = self._system.cat_file(self._entry_path(key))
            return data
        except FileNotFoundError:
            return None

    def save(self, key: str, data: bytes) -> None:
        """Save an entry atomically: directly on object stores, else under a temporary name, followed by a rename."""
        path = self._entry_path(key)
        if self._system.async_impl:
            self._system.pipe_file(path, data)
            return
        self._system.makedirs(self._root, exist_ok=True)
        part = f"{path}.{secrets.token_hex(4)}.part"
        self._system.pipe_file(part, data)
        self._system.mv(part, path)

    def _entry_path(self, key: str) -> str:
        return f"{self._root}/{key}.engine"
