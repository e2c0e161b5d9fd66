"""Measure the resident memory of processes, on Linux; elsewhere it is 0."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from attrs import frozen

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@frozen
class Resident:
    """Bytes in memory: ``anonymous`` is a process's own; ``file`` mirrors files, and the system may drop it."""

    anonymous: int = 0
    file: int = 0

    @property
    def total(self) -> int:
        """What is usually called resident."""
        return self.anonymous + self.file

    def __add__(self, other: Resident) -> Resident:
        return Resident(self.anonymous + other.anonymous, self.file + other.file)


def resident(pid: int | None = None) -> Resident:
    """What one process has (None: this one); nothing once it has ended, or where there is no /proc."""
    try:
        _, total, shared, *_ = map(int, Path(f"/proc/{pid or 'self'}/statm").read_text().split())
    except (OSError, ValueError):
        return Resident()
    return Resident((total - shared) * _PAGE, shared * _PAGE)


def children(pid: int | None = None) -> Iterator[int]:
    """The processes that a process (None: this one) has begun, and those that these have."""
    for path in Path(f"/proc/{pid or 'self'}/task").glob("*/children"):
        try:
            begun = list(map(int, path.read_text().split()))
        except OSError:
            continue
        for child in begun:
            yield child
            yield from children(child)


def family(pid: int | None = None) -> Resident:
    """A process with its children. What they share of files is counted for each."""
    return sum(map(resident, children(pid)), resident(pid))


class Sampler:
    """While it is entered, reads again and again what a process and its children have; keeps the most of each kind.

    A thread of its own reads every ``interval`` seconds: shorter peaks can be missed.
    """

    def __init__(self, pid: int | None = None, interval: float = 0.01) -> None:
        self.pid, self.interval = pid, interval
        self.first = self.last = Resident()
        self.total = self.anonymous = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def sample(self) -> None:
        """Reads once more."""
        self.last = family(self.pid)
        self.total, self.anonymous = max(self.total, self.last.total), max(self.anonymous, self.last.anonymous)

    def _run(self) -> None:
        while not self._ended.wait(self.interval):
            self.sample()

    def __enter__(self) -> Self:
        self.sample()
        self.first = self.last
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self.sample()
