"""End this process if a call waits for another rank whose process has ended.

torch's NCCL watchdog monitors only the collectives that torch calls, not those in a CUDA graph or an engine. Without
this module, kernels of these collectives would wait forever, and the host with them.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final
from weakref import ref

import torch
from attrs import define, field

from pipeline.aten.types import Argument
from pipeline.errors import error_text

log = logging.getLogger(__name__)

PART: Final = 0.65
"""The fraction of a process group's timeout after which a call counts as late. A hang is noticed after 1.25 times this
time, so that the process ends within the timeout."""
GRACE: Final = 3.0
"""The seconds within which the other ranks can report that they wait, too."""


@define(eq=False)
class Watchdog:
    """A thread that logs an error and ends the process if a call on the GPU is not finished after ``seconds``. It
    watches one call until it has finished, and then the latest call. It asks CUDA about a call only after a quarter of
    ``seconds``, since CUDA forbids such queries while another thread captures a graph in the mode "global". The thread
    ends when this object is freed.

    waiting: returns the error's text. end: ends the process, as torch's watchdog does. latest, watched: (an event after
        the call, the time of its launch).
    """

    seconds: float
    waiting: Callable[[], str]
    end: Callable[[], object] = os.abort
    latest: deque[tuple[torch.cuda.Event, float]] = field(factory=lambda: deque(maxlen=1), init=False)
    watched: tuple[torch.cuda.Event, float] | None = field(default=None, init=False)
    thread: threading.Thread | None = field(default=None, init=False)

    def watch(self, launched: torch.cuda.Event) -> None:
        """Watch the call that was launched before this event was recorded."""
        self.latest.append((launched, time.monotonic()))
        if self.thread is None:
            every = min(1.0, self.seconds / 10)
            self.thread = threading.Thread(target=_poll, args=(ref(self), every), name="rank watchdog", daemon=True)
            self.thread.start()

    def is_late(self) -> bool:
        """Return whether the watched call takes longer than ``seconds``."""
        self.watched = self.watched or (self.latest.pop() if self.latest else None)
        if self.watched is None:
            return False
        mark, since = self.watched
        age = time.monotonic() - since
        if age >= self.seconds / 4 and mark.query():
            self.watched = None
            return False
        return age > self.seconds


def _poll(watchdog: Callable[[], Watchdog | None], interval: float) -> None:
    """Check every ``interval`` seconds whether the watched call is late, and then end the process.

    watchdog: a weak reference; polling ends when its object is gone.
    """
    while True:
        time.sleep(interval)
        here = watchdog()
        if here is None:
            return
        if here.is_late():
            log.critical("%s", here.waiting())
            here.end()
            return
        del here


def waiting_text(
    store: Argument, store_key: str, rank: int, other_ranks: Iterable[int], seconds: float, grace: float = GRACE
) -> str:
    """Return the error text for a call that has not finished after ``seconds``; it names the ranks that do not wait in
    the same call. A rank that waits sets a key, which begins with ``store_key``, in ``store``; the others are those
    without such a key after ``grace`` more seconds."""
    said = f"rank {rank} on {socket.gethostname()}: a call with collectives is not done after {seconds:g} s"
    try:
        store.set(f"{store_key}/waits/{rank}", "")
        ends = time.monotonic() + grace
        absent = list(other_ranks)
        while absent and time.monotonic() < ends:
            time.sleep(grace / 20)
            absent = [other for other in absent if not store.check([f"{store_key}/waits/{other}"])]
    except RuntimeError as error:
        return f"{said}, and the store of the ranks does not answer ({error_text(error)}): the first rank has ended"
    if not absent:
        return f"{said}, and all others wait, too: look for calls that differ between ranks"
    return f"{said}, and rank {', '.join(map(str, absent))} has ended, or makes another call: this process ends"
