"""Build several engines at once, in threads of this process.

TensorRT releases the interpreter lock while it builds, so building, writing and hashing of plans run at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final, TypeVar

import torch

T = TypeVar("T")

THREADS: Final = 4
"""The maximum number of builds that run at once."""
AT_ONCE: Final = 5 << 30
"""The maximum bytes of weights of builds that run at once, since a build takes 1.4 to 2.7 times its weights."""


def build_in_threads(
    builds: Sequence[Callable[[threading.Event], T]], weights: Sequence[int], progress: Callable[[int], object]
) -> list[T]:
    """Run builds, those with most weights first, and return their results in the given order.

    builds: each takes an event, and ends early once it is set: after an error, or Ctrl-C, which are raised.
    weights: the bytes of weights of each build. progress: called with the number of finished builds.
    """
    waiting = sorted(range(len(builds)), key=lambda i: -weights[i])
    running: dict[Future[T], int] = {}
    results: dict[int, T] = {}
    stopped, most = threading.Event(), min(THREADS, os.cpu_count() or 1)
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else -1  # -1 changes nothing

    def run(i: int) -> T:
        with torch.cuda.device(device):  # a new thread has the first GPU
            return builds[i](stopped)

    with ThreadPoolExecutor(most, thread_name_prefix="pipeline-build") as pool:
        try:
            while waiting or running:
                for i in [*waiting]:
                    taken = sum(weights[j] for j in running.values())
                    if not running or (len(running) < most and taken + weights[i] <= AT_ONCE):
                        waiting.remove(i)
                        running[pool.submit(run, i)] = i
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    results[running.pop(future)] = future.result()
                    progress(len(results))
        except BaseException:
            stopped.set()
            raise
    return [results[i] for i in range(len(builds))]
