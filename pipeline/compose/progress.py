"""Show progress bars on a terminal, as an observer of a pipeline."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from pipeline.compose.events import Event
from pipeline.compose.ledger import Ledger

log = logging.getLogger(__name__)

_DRAWING: Final = threading.Lock()
"""The lock that a ledger holds while it shows progress bars, so that nested or concurrent runs show none."""


class StageProgress(Ledger):
    """A ledger that also shows progress bars: pass it to ``Pipeline.observed_by`` and use it as a context manager.

    Bars are shown only on a terminal, unless ``show`` is set, and not while another ledger shows bars. The entries are
    those of a `Ledger`, including failed stages.

    transient: remove the bars at the end. interval: the seconds between two reads of memory.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        show: bool | None = None,
        transient: bool = False,
        interval: float = 0.01,
    ) -> None:
        super().__init__(interval)
        console = console or Console(file=sys.stderr, force_terminal=show or None)
        self._tasks: dict[str, TaskID] = {}
        self._draws = False
        self._bars = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}", style="dim"),
            console=console,
            transient=transient,
            disable=not (console.is_terminal if show is None else show),
        )

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if event.kind == "started":
            self._tasks[event.stage] = self._bars.add_task(event.stage, total=None, detail="")
            return
        task = self._tasks[event.stage]
        if event.kind == "progress":
            self._bars.update(task, completed=event.done, total=event.total, detail=event.detail[:60])
            return
        if event.kind == "finished":
            took = f"at most {self.entries[-1].peak / 1e6:.0f} MB"
            self._bars.update(task, completed=1, total=1, detail=took)
        self._bars.stop_task(task)

    def __enter__(self) -> Self:
        if not self._draws and not self._bars.disable and _DRAWING.acquire(blocking=False):
            self._draws = True
            self._log_errors(self._bars.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._draws:
            self._draws = False
            self._log_errors(self._bars.stop)
            _DRAWING.release()

    def _log_errors(self, draw: Callable[[], None]) -> None:
        """Start or stop the bars; log an error of the terminal, such as a closed pipe, which fails no compilation."""
        try:
            draw()
        except Exception as error:
            log.warning("progress bars are not shown: %s", error)
