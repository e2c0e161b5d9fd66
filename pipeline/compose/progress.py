"""Show progress bars on a terminal, as an observer of a pipeline."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from pipeline.compose.events import Event
from pipeline.compose.ledger import Ledger


class StageProgress(Ledger):
    """A ledger that draws progress bars: pass it to ``Pipeline.observed_by`` and use it as a context manager.

    Bars are drawn on a terminal only. Its entries are those of a `Ledger`; a failed stage counts.
    """

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        console = console or Console(file=sys.stderr)
        self._tasks: dict[str, TaskID] = {}
        self._bars = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}", style="dim"),
            console=console,
            disable=not console.is_terminal,
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
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
