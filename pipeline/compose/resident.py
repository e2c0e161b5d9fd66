"""Measure the resident memory of processes on Linux; on other systems, return 0."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Self

from attrs import frozen

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@frozen
class ResidentMemory:
    """Resident bytes of a process: ``anonymous`` memory, and the ``total`` with pages of files, which the system may
    drop."""

    anonymous: int = 0
    total: int = 0

    def __add__(self, other: ResidentMemory) -> ResidentMemory:
        return ResidentMemory(self.anonymous + other.anonymous, self.total + other.total)


def process_memory(pid: int | None = None) -> ResidentMemory:
    """Return the resident memory of a process (None: this process); zero if it has ended, or without /proc."""
    try:
        _, total, shared, *_ = _read_numbers(f"/proc/{pid or 'self'}/statm")
    except (OSError, ValueError):
        return ResidentMemory()
    return ResidentMemory((total - shared) * _PAGE, total * _PAGE)


def descendant_pids(pid: int | None = None) -> Iterator[int]:
    """Yield the descendants of a process (None: this process)."""
    threads = f"/proc/{pid or 'self'}/task"
    try:
        names = os.listdir(threads)  # noqa: PTH208 - three times as fast, and called all the time
    except OSError:
        return
    for name in names:
        try:
            begun = _read_numbers(f"{threads}/{name}/children")
        except OSError:
            continue
        for child in begun:
            yield child
            yield from descendant_pids(child)


def _read_numbers(path: str) -> list[int]:
    """Return the numbers in a /proc file, with a single read: five times as fast as a file object."""
    file = os.open(path, os.O_RDONLY)
    try:
        return list(map(int, os.read(file, 1 << 16).split()))
    finally:
        os.close(file)


def process_tree_memory(pid: int | None = None) -> ResidentMemory:
    """Return the resident memory of a process and its descendants; shared file pages count once for each process."""
    return sum(map(process_memory, descendant_pids(pid)), process_memory(pid))


class Sampler:
    """A context that records the peak memory of a process and its descendants, for each kind of memory. A thread reads
    it every ``interval`` seconds; shorter peaks can be missed."""

    def __init__(self, pid: int | None = None, interval: float = 0.01) -> None:
        self.pid, self.interval = pid, interval
        self.first = self.last = ResidentMemory()
        self.total = self.anonymous = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read_until_end, daemon=True)

    def read_memory(self) -> None:
        self.last = process_tree_memory(self.pid)
        self.total, self.anonymous = max(self.total, self.last.total), max(self.anonymous, self.last.anonymous)

    def _read_until_end(self) -> None:
        while not self._ended.wait(self.interval):
            self.read_memory()

    def __enter__(self) -> Self:
        self.read_memory()
        self.first = self.last
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self.read_memory()
