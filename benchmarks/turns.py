"""Calls measured in turns, and processes that compile side by side but measure one after the other."""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from benchmarks.methods import Call

ROUNDS, WARM_UP, CALLS = 6, 10, 50
"""Turns for each call; in a turn, calls that are not measured, and calls of each measurement."""
REST = 2
"""Seconds before anything is measured: TensorRT-RTX compiles kernels for the shapes at hand in the background."""
LOOP = 10_000
"""Turns of the loop that tells how fast the host is."""
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


def in_turns(
    calls: Mapping[str, Call],
    around: Callable[[str], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    rest: float = REST,
    rounds: int = ROUNDS,
    warm_up: int = WARM_UP,
    count: int = CALLS,
) -> dict[str, dict[str, float]]:
    """How long each call takes, by name, measured one after the other and again: what changes on the machine meanwhile
    changes them all. ``around`` gives what a turn of a call happens in; ``rounds``, ``warm_up`` and ``count`` are fewer
    for calls that take long.

    ``gpu_ms`` on the GPU and ``host_us`` of the host, medians of calls that are each awaited; ``calls_per_second``, the
    median of the turns', when none is awaited; ``loop_us`` for a loop of Python before each turn, which tells how fast
    the host was then. What else runs on a machine slows all these: ``_quiet`` ones are of the turn in which they were
    best.
    """
    awaited: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    rates: dict[str, list[float]] = {name: [] for name in calls}
    loops: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            with around(name):
                for _ in range(warm_up):
                    call()
                if number:
                    loops[name].append(_loop())
                    once = [_once(call) for _ in range(count)]
                    awaited[name] += once
                    turns[name].append(
                        (statistics.median(ms for ms, _ in once), statistics.median(us for _, us in once))
                    )
                    rates[name].append(_rate(call, count))
        if calls and not number:
            torch.cuda.synchronize()
            time.sleep(rest)
    return {
        name: {
            "gpu_ms": round(statistics.median(ms for ms, _ in awaited[name]), 4),
            "gpu_ms_quiet": round(min(ms for ms, _ in turns[name]), 4),
            "host_us": round(statistics.median(us for _, us in awaited[name]), 1),
            "host_us_quiet": round(min(us for _, us in turns[name]), 1),
            "calls_per_second": round(statistics.median(rates[name]), 1),
            "calls_per_second_quiet": round(max(rates[name]), 1),
            "loop_us": round(statistics.median(loops[name]), 1),
        }
        for name in calls
    }


def _once(call: Call) -> tuple[float, float]:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    before = time.perf_counter()
    call()
    host = time.perf_counter() - before
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end), 1e6 * host


def _loop() -> float:
    before, total = time.perf_counter(), 0
    for i in range(LOOP):
        total += i * i
    return 1e6 * (time.perf_counter() - before)


def _rate(call: Call, count: int) -> float:
    torch.cuda.synchronize()
    before = time.perf_counter()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return count / (time.perf_counter() - before)
