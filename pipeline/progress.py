"""Progress of a pipeline as an observer: seconds for each stage, and a bar for each on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from pipeline.events import Event


class StageProgress:
    """Give it to ``Pipeline.observed_by`` and use it as a context manager: bars are drawn on a terminal only.

    seconds: how long each stage took, by name, in the order in which they ended; a failed stage counts.
    """

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(file=sys.stderr)
        self.seconds: dict[str, float] = {}
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
        if event.kind == "started":
            self._tasks[event.stage] = self._bars.add_task(event.stage, total=None, detail="")
            return
        task = self._tasks[event.stage]
        if event.kind == "progress":
            self._bars.update(task, completed=event.done, total=event.total, detail=event.detail[:60])
            return
        self.seconds[event.stage] = event.seconds or 0.0
        if event.kind == "finished":
            self._bars.update(task, completed=1, total=1, detail="")
        self._bars.stop_task(task)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
