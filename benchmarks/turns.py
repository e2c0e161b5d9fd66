"""Calls measured in turns, and processes that compile side by side but measure one after the other."""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from benchmarks.methods import Call

ROUNDS, CALLS = 5, 60
_lock: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()


def turn() -> contextlib.AbstractContextManager[Any]:
    """What a process holds while it measures."""
    return _lock


def side_by_side(processes: int) -> ProcessPoolExecutor:
    """Processes that share the lock of ``turn``."""
    apart = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, apart, _share, (apart.Lock(),))


def _share(lock: Any) -> None:
    global _lock
    _lock = lock


def in_turns(calls: dict[str, Call]) -> dict[str, float]:
    """Milliseconds on the GPU by name: the median of rounds of medians."""
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(20):
            call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            rounds[name].append(statistics.median(_once(call) for _ in range(CALLS)))
    return {name: statistics.median(times) for name, times in rounds.items()}


def _once(call: Call) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)
