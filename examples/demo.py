"""``make demo``: ResNet-50 and BERT-base, each one engine for batches of 1 to 8, compared with eager at 1, 3 and 8."""

from __future__ import annotations

import sys
from collections.abc import Callable

from attrs import frozen
from rich.console import Console
from rich.table import Table
from torch import no_grad

import pipeline
from examples.models import Case, full
from pipeline.cli.reporting import Agreement, largest_difference
from pipeline.compose.progress import StageProgress

MODELS = {"ResNet-50": "resnet50", "BERT-base": "bert"}
BATCHES = (1, 3, 8)
LIMITS = {"reference": 1e-5, "tensorrt": 1e-2}
"""The largest error allowed, relative to eager's largest output: that of float32, and on a GPU that of TF32, in which
TensorRT multiplies there."""


@frozen
class Row:
    """What came of one model."""

    model: str
    compiled: pipeline.Compiled
    seconds: dict[str, float]
    agreement: dict[int, Agreement]

    def broken(self) -> list[str]:
        """Each promise that was not kept, in words."""
        engines, fallback = len(self.compiled.engines), self.compiled.coverage.fallback
        faults = [f"{engines} engines, one was promised"] if engines != 1 else []
        faults += [f"in PyTorch: {f}" for f in fallback]
        faults += [
            f"the error at batch {batch} is {a}, {LIMITS[a.executor]} relative was promised"
            for batch, a in self.agreement.items()
            if not a.relative <= LIMITS[a.executor]
        ]
        return [f"{self.model}: {fault}" for fault in faults]


def demonstrate(model: str, case: Case, console: Console) -> Row:
    """One model compiled and compared."""
    with StageProgress(console) as progress:
        compile = pipeline.default().observed_by(progress)
        compiled = compile(case.model, kwargs=case.kwargs, dynamic_shapes=case.dynamic_shapes)
    module = compiled.module()
    agreement = {}
    for batch in BATCHES:
        inputs = case.inputs(batch=batch)
        with no_grad():
            agreement[batch] = largest_difference(module(**inputs), case.model(**inputs), module.executor)
    return Row(model, compiled, dict(progress.seconds), agreement)


def table(rows: list[Row]) -> Table:
    """A column for each model."""
    result = Table("", *(row.model for row in rows), title=f"compiled with {rows[0].compiled.engines[0].library}")
    for column in result.columns[1:]:
        column.justify = "right"
    for name, cell in _cells(rows).items():
        result.add_row(name, *map(cell, rows))
    return result


def _cells(rows: list[Row]) -> dict[str, Callable[[Row], str]]:
    executor = rows[0].agreement[BATCHES[0]].executor
    cells: dict[str, Callable[[Row], str]] = {
        "engines": lambda row: str(len(row.compiled.engines)),
        "operators in TensorRT": lambda row: f"{len(row.compiled.coverage.converted)} of {row.compiled.coverage.total}",
        "engine size": lambda row: f"{sum(e.nbytes for e in row.compiled.engines) / 1e6:.1f} MB",
    }
    cells |= {f"{name}, s": lambda row, name=name: f"{row.seconds[name]:.2f}" for name in rows[0].seconds}  # type: ignore[misc]
    for batch in BATCHES:
        name = f"relative error, batch {batch} ({executor})"
        cells[name] = lambda row, batch=batch: f"{row.agreement[batch].relative:.1g}"  # type: ignore[misc]
    return cells


def main(make: Callable[[str], Case] = full, console: Console | None = None) -> int:
    """Shows the table; 1 if a promise was not kept."""
    console = console or Console()
    rows = []
    for model, name in MODELS.items():
        console.print(f"{model}: compiling, then comparing with eager at batches {', '.join(map(str, BATCHES))}")
        rows.append(demonstrate(model, make(name), console))
    console.print(table(rows))
    faults = [fault for row in rows for fault in row.broken()]
    for fault in faults:
        console.print(fault, style="red")
    if not faults:
        console.print("Each model is one engine, nothing runs in PyTorch, and every batch agrees with eager.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
