"""Run cases one after another, a line of JSON each, so that a run that ended goes on where it stopped."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.suites.judge import Case, Row, said

LONGEST = 120
"""Seconds of processor time after which a case is given up."""


def sampled(cases: Iterable[Case], count: int | None, seed: int) -> list[Case]:
    """Return so many cases, drawn by a seed, in their order; all without a count."""
    found = list(cases)
    if count is None or count >= len(found):
        return found
    return [found[i] for i in sorted(random.Random(seed).sample(range(len(found)), count))]


def rows(log: Path) -> dict[str, Row]:
    """Return the last row of each case in a log. A case that was begun and did not end has crashed the process."""
    if not log.exists():
        return {}
    lines = map(json.loads, log.read_text("utf-8").splitlines())
    return {row["case"]: row for row in lines}


def run(cases: Iterable[Case], log: Path, seconds: float) -> None:
    """Judge the cases that the log does not have yet, for so many seconds."""
    done, end = rows(log), time.monotonic() + seconds
    for case in cases:
        if case.name in done:
            continue
        if time.monotonic() > end:
            return
        _append(log, {"case": case.name, "outcome": "wrong", "reason": "the process ended"})
        start = time.process_time()
        row = {"case": case.name, **_timed(case)}
        _append(log, row | {"seconds": round(time.process_time() - start, 2)})


def _append(log: Path, row: Row) -> None:
    with log.open("a", encoding="utf-8") as file:
        print(json.dumps(row), file=file)


class _TooLongError(BaseException):
    """A case takes longer than ``LONGEST``; no case may handle it."""


def _timed(case: Case) -> Row:
    def stop(*_: Any) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LONGEST)
    try:
        return case.judge()
    except _TooLongError:
        return {"outcome": "refused", "reason": f"it takes longer than {LONGEST} s"}
    except Exception as error:
        return {"outcome": "wrong", "reason": f"{type(error).__name__}: {said(error)}"}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
