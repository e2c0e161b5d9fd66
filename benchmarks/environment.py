"""What a measurement depends on, and where it is kept: benchmarks/results, one JSON file for each kind and machine."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

import pipeline
from pipeline.trt import CAPABILITIES

RESULTS = Path(__file__).parent / "results"
Row: TypeAlias = dict[str, Any]


def environment(libraries: Sequence[str] = ("transformers",)) -> dict[str, Any]:
    """Versions, also those of the libraries that models are from, machine and date."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {
            "pipeline": pipeline.__version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            CAPABILITIES.flavour: str(CAPABILITIES.version),
            **{name: importlib.metadata.version(name) for name in libraries},
        },
        "machine": {
            "cpu": cpu(),
            "cores": len(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def cpu() -> str:
    """The processor's name as Linux gives it."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return found[1] if found else platform.processor() or platform.machine()


def save(name: str, result: dict[str, Any], libraries: Sequence[str] = ("transformers",)) -> Path:
    """Write a result with its environment; an earlier one of that name is replaced."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**environment(libraries), **result}, indent=2) + "\n", encoding="utf-8")
    return path


def collect(
    name: str, key: str, parts: Iterable[Sequence[Row]], *, of: Sequence[str], add: bool = False, **more: Any
) -> Path:
    """Print and write down the rows of a result part by part, so that a run that is ended keeps what it has.

    With ``add`` the rows of an earlier run stay, but for those that have the same fields ``of`` as new ones, which take
    their place; so does its note.
    """

    def subject(row: Row) -> tuple[Any, ...]:
        return tuple(row.get(field) for field in of)

    path = RESULTS / f"{name}.json"
    before_this = json.loads(path.read_text(encoding="utf-8")) if add and path.exists() else {key: []}
    rows: list[Row] = before_this[key]
    more = {**{each: before_this[each] for each in ("note",) if each in before_this}, **more}
    for found in parts:
        anew = set(map(subject, found))
        before = next((i for i, row in enumerate(rows) if subject(row) in anew), len(rows))
        rows = [*rows[:before], *found, *(row for row in rows[before:] if subject(row) not in anew)]
        path = save(name, {key: rows, **more})
        print(*map(json.dumps, found), sep="\n", flush=True)
    print(f"written to {path}")
    return path
