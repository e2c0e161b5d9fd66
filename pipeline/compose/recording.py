"""Select the `Ledger` that records a run's time and memory: an observer, or a new one, which may show progress bars."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pipeline.compose.events import Observer
from pipeline.compose.ledger import Ledger


def select_ledger(observers: Sequence[Observer], progress: bool | None, stage_names: Sequence[str]) -> Ledger:
    """Return the first ledger among the observers, so that memory is read only once. Without one, return a new ledger,
    which reads memory every 50 ms, and shows progress bars if ``progress`` is True, or is None on a terminal.
    ``stage_names``: the run's stages."""
    if (known := next((each for each in observers if isinstance(each, Ledger)), None)) is not None:
        return known
    if stage_names and (sys.stderr is not None and sys.stderr.isatty() if progress is None else progress):
        from pipeline.compose.progress import RunProgress  # rich takes a while to import

        return RunProgress(stage_names[-1])
    return Ledger(interval=0.05)
