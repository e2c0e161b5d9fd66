"""Configurations that are prepared side by side, each in a process of its own, and measured one after the other."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from benchmarks.environment import Row
from pipeline.cli.usage import first_line

Subject: TypeAlias = tuple[Any, ...]
Prepare: TypeAlias = Callable[..., Callable[[], Sequence[Row]]]
"""Prepare a subject, given by position; return what measures it and gives its rows. Spawned processes import it."""
ENDING = 20
"""Seconds that a process may take to end."""
_began = time.monotonic()


def log(subject: Subject, text: str) -> None:
    """Write a line to stderr: seconds since the benchmark began, the subject, and what happened."""
    print(f"{time.monotonic() - _began:7.1f} s  {' '.join(map(str, subject))}: {text}", file=sys.stderr, flush=True)


def measured(
    subjects: Sequence[Subject], prepare: Prepare, together: int = 1, limit: float = 600
) -> Iterator[tuple[Subject, Sequence[Row] | str]]:
    """Each subject with its rows, or why it has none.

    So many subjects as ``together`` says are prepared at the same time. When all of them are prepared or have failed,
    they are measured in order, each while nothing else runs, and end before the next starts.

    limit: seconds to prepare all subjects of a group, and seconds to measure one: what takes longer is killed.
    """
    for first in range(0, len(subjects), together):
        group = subjects[first : first + together]
        with _threads(len(group)), contextlib.ExitStack() as stack:
            children = [stack.enter_context(contextlib.closing(Child(each, prepare))) for each in group]
            until = time.monotonic() + limit
            failed = {child.subject: child.heard(until) for child in children}
            for child in children:
                found = failed[child.subject] or child.measured(limit)
                child.close()
                log(child.subject, found if isinstance(found, str) else f"measured, {len(found)} rows")
                yield child.subject, found


@contextlib.contextmanager
def _threads(processes: int) -> Iterator[None]:
    """Within it, processes start with their share of this machine's cores, for PyTorch and for torch.compile."""
    share = str(max(1, len(os.sched_getaffinity(0)) // processes))
    names = ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ |= {name: share for name in names if before[name] is None}
    try:
        yield
    finally:
        for name in names:
            if before[name] is None:
                os.environ.pop(name)


class Child:
    """A process that prepares a subject, says when it is prepared, and measures it when it is told to."""

    def __init__(self, subject: Subject, prepare: Prepare) -> None:
        apart = multiprocessing.get_context("spawn")
        self.subject = subject
        self.link, other = apart.Pipe()
        self.process = apart.Process(target=_child, args=(other, subject, prepare, _began))
        self.process.start()
        other.close()

    def heard(self, until: float) -> Any:
        """What the process says next: None when it is prepared, then its rows; or why it says nothing of the kind."""
        try:
            if self.link.poll(max(0.0, until - time.monotonic())):
                return self.link.recv()
            self.process.kill()
            return "it took too long"
        except (EOFError, ConnectionError):
            self.process.join(ENDING)
            return f"its process ended with code {self.process.exitcode}"

    def measured(self, limit: float) -> Any:
        """Rows, or why there are none."""
        with contextlib.suppress(OSError):
            self.link.send("now")
        return self.heard(time.monotonic() + limit)

    def close(self) -> None:
        """Let the process end, by force if it takes long or still prepares."""
        self.link.close()
        if self.process.is_alive() and sys.exc_info()[0] is None:
            self.process.join(ENDING)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()


def _child(link: Connection[Any, Any], subject: Subject, prepare: Prepare, began: float) -> None:
    global _began
    _began = began
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to answer: it kills this process
    try:
        measure = prepare(*subject)
        log(subject, "prepared")
        link.send(None)
        if link.poll(None) and link.recv():
            link.send(list(measure()))
    except EOFError:  # nobody asks any more
        return
    except Exception as error:
        log(subject, f"{type(error).__name__}: {first_line(error)}")
        link.send(f"{type(error).__name__}: {first_line(error)}")
