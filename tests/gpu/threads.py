"""Threads that all call the same thing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def in_threads(work: Callable[[int], None], count: int = 8) -> None:
    """Call it with 0, 1, … at the same time; the first of its errors is raised when all are done."""
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(work, number) for number in range(count)]:
            done.result()
