"""Builds at once: the largest first, within the limit of memory, and none goes on after an error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from pipeline.build.threads import AT_ONCE, build_in_threads

Build = Callable[[threading.Event], int]


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)


def test_results_are_in_order_and_large_builds_start_first() -> None:
    begun: list[int] = []
    finished: list[int] = []
    four = threading.Barrier(4, timeout=30)

    def build(i: int, stopped: threading.Event) -> int:
        begun.append(i)
        four.wait()
        return i

    builds: list[Build] = [partial(build, i) for i in range(8)]
    assert build_in_threads(builds, [1, 8, 2, 7, 3, 6, 4, 5], finished.append) == [*range(8)]
    assert {*begun[:4]} == {1, 3, 5, 7}
    assert finished == [*range(1, 9)]


def test_large_builds_run_alone() -> None:
    alone = threading.Lock()

    def build(i: int, stopped: threading.Event) -> int:
        assert alone.acquire(blocking=False), "two at once"
        time.sleep(0.01)
        alone.release()
        return i

    builds: list[Build] = [partial(build, i) for i in range(3)]
    assert build_in_threads(builds, [AT_ONCE, AT_ONCE + 1, AT_ONCE // 2 + 1], lambda done: None) == [0, 1, 2]
    assert build_in_threads([], [], lambda done: None) == []


def test_an_error_stops_the_others() -> None:
    begun = threading.Event()
    ended: list[bool] = []

    def fails(stopped: threading.Event) -> int:
        begun.wait(5)
        raise ValueError("no kernel")

    def waits(stopped: threading.Event) -> int:
        begun.set()
        ended.append(stopped.wait(5))
        return 0

    never: Build = lambda stopped: pytest.fail("it was started")  # noqa: E731
    with pytest.raises(ValueError, match="no kernel"):
        build_in_threads([fails, waits, never], [AT_ONCE // 2, AT_ONCE // 2, 1], lambda done: None)
    assert ended == [True]
