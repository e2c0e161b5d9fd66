"""A call that waits for a rank that has ended ends its process, with the rank's number."""

from __future__ import annotations

import gc
import threading
import time

import pytest
from torch._C._distributed_c10d import HashStore

from pipeline.runtime.rank_watchdog import Watchdog, waiting_text


class Mark:
    """A mark that is passed when a test says so."""

    def __init__(self, passed: bool = False) -> None:
        self.passed = passed

    def query(self) -> bool:
        return self.passed


def test_a_call_that_is_not_done_ends_the_process(caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()
    watchdog = Watchdog(0.2, lambda: "rank 1 has ended", ended.set)
    for mark in (Mark(passed=True), Mark(passed=True), Mark()):
        watchdog.watch(mark)
        time.sleep(0.05)
    assert not ended.is_set()
    assert ended.wait(5)
    assert "rank 1 has ended" in caplog.text


def test_the_thread_ends_with_its_watchdog() -> None:
    watchdog = Watchdog(0.2, str, lambda: None)
    watchdog.watch(Mark(passed=True))
    thread = watchdog.thread
    assert thread is not None
    del watchdog
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()


def test_the_last_of_several_calls_is_watched_and_those_that_are_done_are_not_late() -> None:
    watchdog = Watchdog(1e-9, str)
    watchdog.thread = threading.current_thread()  # none is started
    first, last = Mark(), Mark()
    watchdog.watch(first)
    assert watchdog.is_late()
    watchdog.watch(last)
    first.passed = True
    assert not watchdog.is_late()
    assert watchdog.is_late()
    last.passed = True
    assert not watchdog.is_late()
    assert not watchdog.is_late()


def test_the_gpu_is_not_asked_about_a_young_call() -> None:
    """Another thread may capture a graph."""
    watchdog = Watchdog(1000, str)
    watchdog.thread = threading.current_thread()
    watchdog.watch(None)  # type: ignore[arg-type]  # asking it is an AttributeError
    assert not watchdog.is_late()


@pytest.mark.parametrize(
    ("here", "said"), [((), "rank 1, 2 has ended"), ((2,), "rank 1 has ended"), ((1, 2), "all others wait, too")]
)
def test_the_text_names_the_ranks_that_do_not_wait(here: tuple[int, ...], said: str) -> None:
    store = HashStore()
    for other in here:
        store.set(f"key/waits/{other}", "")
    text = waiting_text(store, "key", 0, [1, 2], 30, grace=0.1)
    assert said in text and "rank 0 on " in text
    assert store.check(["key/waits/0"])


def test_a_store_that_does_not_answer_is_that_of_a_first_rank_that_ended() -> None:
    class Gone:
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("Connection was closed")

        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("Connection was closed")

    assert "the first rank has ended" in waiting_text(Gone(), "key", 1, [0], 30)
