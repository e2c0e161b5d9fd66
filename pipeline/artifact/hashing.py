"""Hash large data on separate threads while it is written or read."""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import BinaryIO, Self

PIECE = 1 << 20
"""The number of bytes that are read, hashed and written at a time; they fit a core's cache."""
SMALL = PIECE >> 3
"""Pieces of up to this many bytes are joined with their neighbours."""
AHEAD = 16
"""The maximum number of pieces that wait to be hashed, which limits memory."""
THREADS = min(8, os.cpu_count() or 1)
"""The number of threads that compute hashes."""
SYNCED = 1 << 25
"""The number of bytes after which a file is flushed to disk in the background."""


def split_into_pieces(parts: Iterable[memoryview | bytes]) -> Iterator[memoryview | bytes]:
    """Split parts into pieces of at most `PIECE` bytes, and join small neighbours to reduce the overhead per piece."""
    small, size = list[memoryview](), 0
    views = (memoryview(part).cast("B") for part in parts if memoryview(part).nbytes)
    for piece in (view[start : start + PIECE] for view in views for start in range(0, view.nbytes, PIECE)):
        if small and (piece.nbytes > SMALL or size + piece.nbytes > PIECE):
            yield b"".join(small)
            small, size = [], 0
        if piece.nbytes > SMALL:
            yield piece
        else:
            small, size = [*small, piece], size + piece.nbytes
    if small:
        yield b"".join(small)


class ChecksumWriter:
    """Write to a file while other threads compute SHA-256 and CRC-32 and the disk stores earlier pieces. The threads
    end when this context ends. The caller must call fsync."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.hashers = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self.disk = ThreadPoolExecutor(1)
        self.syncing: Future[None] | None = None
        self.unsynced = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with ExitStack() as ends:
            for thread in (*self.hashers, self.disk):
                ends.callback(thread.shutdown, cancel_futures=True)
            if kind is None and self.syncing is not None:
                self.syncing.result()  # raise an error of the disk, which a later fsync would not report

    def write(self, parts: Iterable[memoryview | bytes], size: int, known_digest: str = "") -> tuple[str, int]:
        """Write parts of ``size`` bytes in all; return their SHA-256 in hexadecimal, and their CRC-32. If the
        SHA-256 is passed (``known_digest``), it is not computed."""
        sha256, crc, waiting = hashlib.sha256(), 0, deque[Future[None]]()

        def check(piece: memoryview | bytes) -> None:
            nonlocal crc
            crc = zlib.crc32(piece, crc)

        acts: tuple[Callable[[memoryview | bytes], None], ...] = (check,) if known_digest else (check, sha256.update)
        for piece in split_into_pieces(parts):
            for thread, act in zip(self.hashers, acts, strict=False):
                if size <= PIECE:
                    act(piece)
                else:
                    waiting.append(thread.submit(act, piece))
            while len(waiting) > AHEAD * len(acts):
                waiting.popleft().result()
            self.file.write(piece)
            self._flush_in_background(len(piece))
        for future in waiting:
            future.result()
        return known_digest or sha256.hexdigest(), crc

    def _flush_in_background(self, written_bytes: int) -> None:
        """Start a flush to disk every `SYNCED` bytes, so that the final fsync waits only for the rest."""
        self.unsynced += written_bytes
        if self.unsynced < SYNCED:
            return
        if self.syncing is not None:
            if not self.syncing.done():
                return
            self.syncing.result()
        self.file.flush()
        self.unsynced = 0
        self.syncing = self.disk.submit(getattr(os, "fdatasync", os.fsync), self.file.fileno())


class SharedFile:
    """A file that several threads can read and hash at once."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.lock = file, threading.Lock()
        self.size = file.seek(0, 2)

    def read_at(self, offset: int, size: int) -> bytes:
        with self.lock:
            self.file.seek(offset)
            return self.file.read(max(0, min(size, self.size - offset)))

    def sha256(self, offset: int, size: int) -> str:
        """Return the SHA-256 of ``size`` bytes from ``offset``, or fewer if the file ends, without mapping the file."""
        sha256, piece = hashlib.sha256(), memoryview(bytearray(min(size, PIECE)))
        while size > 0:
            with self.lock:
                self.file.seek(offset)
                count = self.file.readinto(piece[: min(size, PIECE)])  # type: ignore[attr-defined]
            if not count:
                break
            sha256.update(piece[:count])
            offset, size = offset + count, size - count
        return sha256.hexdigest()
