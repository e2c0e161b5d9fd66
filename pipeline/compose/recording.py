"""Choose the ledger of a run: one of its observers, the progress on a terminal, or one that nobody sees."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pipeline.compose.events import Observer
from pipeline.compose.ledger import Ledger


def ledger_of(observers: Sequence[Observer], progress: bool | None, names: Sequence[str]) -> Ledger:
    """Return the first ledger among the observers, so that memory is read once; else a new one that samples less, and
    draws the run's progress if the setting says so or, if it is None, on a terminal. ``names``: the run's stages."""
    if (known := next((each for each in observers if isinstance(each, Ledger)), None)) is not None:
        return known
    if names and (sys.stderr is not None and sys.stderr.isatty() if progress is None else progress):
        from pipeline.compose.progress import RunProgress  # rich takes a while to import

        return RunProgress(names[-1])
    return Ledger(interval=0.05)
